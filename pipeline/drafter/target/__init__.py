"""The target model that a drafter learns from: its files, layers and hidden states."""
