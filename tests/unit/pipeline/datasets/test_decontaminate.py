"""Decontamination: runs of words in common with evaluation prompts, found wherever they stand."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from pipeline.datasets.decontaminate import EvaluationText, Hit, NGrams, asked_in, grams_of
from pipeline.datasets.sources import SourceError
from pipeline.records import Prompt

WORDS = [f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(60)]
QUESTION = " ".join(WORDS[:40])
CODE = (
    "Complete this.\n\ndef below(items, most):\n    '''Say whether all items lie below the most that is allowed.'''\n"
)


def grams(*texts: str) -> NGrams:
    return grams_of([EvaluationText(text, "eval/question.jsonl", line) for line, text in enumerate(texts, 1)])


def prompt(*texts: str) -> Prompt:
    roles = ("user", "assistant")
    return Prompt("p", tuple({"role": roles[at % 2], "content": text} for at, text in enumerate(texts)))


@pytest.mark.parametrize("before", range(8))
@pytest.mark.parametrize("start", range(6))
def test_a_run_of_13_words_is_found_wherever_it_stands(before: int, start: int) -> None:
    run = WORDS[start : start + 13]
    text = " ".join(["other"] * before + run + ["more"])

    assert Hit(" ".join(run), "eval/question.jsonl:1") == grams(QUESTION).hit(prompt(text))


def test_a_run_of_12_words_is_none() -> None:
    assert None is grams(QUESTION).hit(prompt(" ".join(["other", *WORDS[3:15], "more"])))


def test_case_punctuation_and_line_ends_hide_nothing() -> None:
    assert grams(QUESTION).hit(prompt(",\r\n".join(WORDS[5:18]).upper())) is not None


@pytest.mark.parametrize("before", range(4))
def test_a_run_of_8_words_is_found_where_the_evaluation_is_code(before: int) -> None:
    text = "so " * before + "say whether all items lie below the most I ask for"

    assert Hit("say whether all items lie below the most", "eval/question.jsonl:1") == grams(CODE).hit(prompt(text))


def test_a_short_question_is_found_where_a_whole_turn_equals_it() -> None:
    ngrams = grams("Rewrite that in verse, please!", "Go on.", "🐟 🔍", "谁？")

    assert Hit("rewrite that in verse please", "eval/question.jsonl:1") == ngrams.hit(
        prompt("a", "b", "Rewrite that in verse please")
    )
    assert None is ngrams.hit(prompt("Rewrite that in verse please, and at length"))
    assert None is ngrams.hit(prompt("Go on, please."))
    assert Hit("go on", "eval/question.jsonl:2") == ngrams.hit(prompt("a", "b", "go on"))
    assert Hit("🐟\ufe0f 🔍", "eval/question.jsonl:3") == ngrams.hit(prompt("🐟\ufe0f 🔍"))
    assert None is ngrams.hit(prompt("🐟"))
    assert Hit("谁", "eval/question.jsonl:4") == ngrams.hit(prompt("谁"))


SCRIPTS = {
    "Chinese": "小船顺流而下三小时到达乙镇，逆流返回要五小时，求水流的速度",
    "Japanese": "次の詩を読み、川が何を表しているかを百字でカタカナを使わず説明しなさい",
    "Thai": "เรือลำหนึ่งแล่นตามน้ำสามชั่วโมงและทวนน้ำห้าชั่วโมง จงหาความเร็วของน้ำ",
    "Lao": "ເຮືອລຳໜຶ່ງແລ່ນຕາມນ້ຳສາມຊົ່ວໂມງ ແລະທວນນ້ຳຫ້າຊົ່ວໂມງ ຈົ່ງຊອກຫາຄວາມໄວຂອງນ້ຳ",
    "Khmer": "ទូកមួយធ្វើដំណើរតាមទឹកបីម៉ោង ហើយច្រាសទឹកប្រាំម៉ោង ចូររកល្បឿននៃទឹក",
    "Burmese": "လှေတစ်စင်းသည် ရေစုန်သုံးနာရီ ရေဆန်ငါးနာရီသွားသည် ရေစီးနှုန်းကိုရှာပါ",
    "Tibetan": "གྲུ་གཟིངས་ཤིག་ཆུ་རྒྱུན་དང་བསྟུན་ནས་ཆུ་ཚོད་གསུམ་འགྲོ་ཞིང་ལྡོག་ནས་ཆུ་ཚོད་ལྔ་འགོར",
    "mixed": "请用Python写一个函数merge_runs，把两个已排序的list合并成一个",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_without_blanks_are_compared_by_characters(script: str) -> None:
    question = SCRIPTS[script]
    near, far = question[:8] + "。" + question[-4:], next(SCRIPTS[name] for name in SCRIPTS if name != script)

    apart = () if script == "mixed" else (" ".join(question), "、".join(question))
    for asked in (question, f"「{question}」 ok?", f"你好：{question}。谢谢", *apart):
        assert grams(question).hit(prompt(asked)) is not None
    for asked in (near, far, question[:6]):
        assert None is grams(question).hit(prompt(asked))


def test_width_marks_and_invisible_characters_hide_nothing() -> None:
    wide = QUESTION.translate({code: code + 0xFEE0 for code in range(33, 127)})
    hidden = "\u200b".join(QUESTION)
    marked = QUESTION.replace("w", "w\u0301\ufe0f")
    half = "ﾂｷﾞﾉ ｼｦ ﾖﾐ、ｶﾜｶﾞ ﾅﾆｦ ｱﾗﾜｽｶｦ ｾﾂﾒｲｼﾅｻｲ"
    accents = "Où l'élève réfléchit-il à la fenêtre où Zoë a posé le café brûlé hier très tôt ?"

    for asked in (wide, hidden, marked):
        assert grams(QUESTION).hit(prompt(f"So: {asked}")) is not None
    assert grams(unicodedata.normalize("NFKC", half)).hit(prompt(f"答え：{half}")) is not None
    assert grams(accents).hit(prompt(f"Dis : {unicodedata.normalize('NFD', accents)}")) is not None


def test_korean_and_hindi_are_compared_by_words() -> None:
    korean = "배 한 척이 강을 따라 세 시간 동안 내려가고 다시 다섯 시간 동안 거슬러 올라온다면 물의 속도는 얼마인가"
    hindi = "एक नाव नदी की धारा के साथ तीन घंटे चलती है और लौटने में उसे पाँच घंटे लगते हैं"

    for text in (korean, hindi):
        assert grams(text).hit(prompt(f"? {text} !")) is not None
        assert None is grams(text).hit(prompt(" ".join(text.split()[:12])))


def test_few_characters_in_code_are_nobodys_question() -> None:
    code = "def f(x):\n    # 返回两个列表中相同的元素\n"

    assert None is grams(code).hit(prompt("两个列表中相同的元素"))
    assert grams(code).hit(prompt(f"补全 {code}")) is not None


@pytest.mark.parametrize("role", ["system", "tool", "user"])
def test_copies_are_found_in_every_turn_that_is_no_answer(role: str) -> None:
    messages = ({"role": role, "content": f"题目：{SCRIPTS['Chinese']}"}, {"role": "user", "content": "Well?"})

    assert grams(SCRIPTS["Chinese"]).hit(Prompt("p", messages)) is not None


def test_recorded_answers_are_not_compared() -> None:
    assert None is grams(QUESTION).hit(prompt("a", QUESTION, "b"))


def test_words_that_three_evaluation_prompts_share_do_not_count() -> None:
    head = "Complete the code I provided.\nfrom typing import List, Tuple, Optional, Any"
    texts = [f"{head}\ndef {name}(one, two, three, four, five, six, seven):" for name in ("sort", "merge", "split")]

    assert None is grams(*texts).hit(prompt(f"{head}\nclass Mine: ..."))
    assert grams(*texts[:2]).hit(prompt(f"{head}\nclass Mine: ...")) is not None


def test_the_same_evaluation_prompt_thrice_is_no_wrapping() -> None:
    assert grams(QUESTION, QUESTION, QUESTION.upper()).hit(prompt(f"Once more: {QUESTION}")) is not None


def test_counting_is_nobodys_question() -> None:
    numbers = " ".join(map(str, range(40)))

    assert None is grams(f"Add these: {numbers}").hit(prompt(f"Which of {numbers} is odd?"))


# What evaluations ask


@pytest.mark.parametrize(
    "row, texts",
    [
        ({"turns": ["one", "two"], "reference": ["no"]}, ["one", "two"]),
        ({"prompt": "one", "canonical_solution": "no"}, ["one"]),
        ({"question": "one", "answer": "no"}, ["one"]),
        ({"question": [[{"role": "user", "content": "one"}], [{"role": "system", "content": "no"}]]}, ["one"]),
        ({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "no"}]}, ["one"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}]}, ["one"]),
        ({"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "no"}]}, ["one"]),
        ({"responses_create_params": {"input": [{"role": "user", "content": "one"}]}}, ["one"]),
    ],
)
def test_what_an_evaluation_asks_is_read_and_its_answers_are_not(row: object, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    asked, silent = asked_in(tmp_path)

    assert (texts, []) == ([one.text for one in asked], silent)


def test_a_file_without_questions_is_named_and_a_folder_refused(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('{"name": "x"}', encoding="utf-8")
    with pytest.raises(SourceError, match="no file in it asks anything"):
        asked_in(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"question": "one"}', encoding="utf-8")

    assert [str(tmp_path / "tools.json")] == asked_in(tmp_path)[1]
    with pytest.raises(SourceError, match="there is no such folder"):
        asked_in(tmp_path / "none")
