"""Kimi's control tokens by name, and text mixed with them.

Guarantees: text is encoded apart from the control tokens beside it, with specials off.
"""

from __future__ import annotations

from typing import Final

END, USER, ASSISTANT, SYSTEM, MIDDLE = "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"


THINK, THINK_CLOSE = "<think>", "</think>"


SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


CALL_BEGIN, ARGUMENT_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


TOOL_MARKERS: Final = (SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END)
