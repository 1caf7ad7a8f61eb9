"""The paper's TextCNN for sequences of token ids."""

from __future__ import annotations

from torch import Tensor, nn

from fedfew.models.max_over_time import MaxOverTime

VOCABULARY = 32_000  # the paper's, where a federation does not say how many token ids it has
PAD = 0  # the token that fills short texts up, unless a tokeniser has another; its embedding is 0 and stays so
WIDTHS = (3, 4, 5)


class TextCNN(nn.Module):
    """Windows of 3, 4 and 5 words, 100 filters each, and of every filter the largest answer in the text (Kim 2014)."""

    def __init__(
        self,
        classes: int,
        vocabulary: int = VOCABULARY,
        embedding: int = 512,
        filters: int = 100,
        drop: float = 0.8,
        log_probabilities: bool = False,
        padding: int = PAD,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=padding)
        self.convolutions = MaxOverTime(nn.Conv1d(embedding, filters, width) for width in WIDTHS)
        self.dropout = nn.Dropout(drop)
        self.fc = nn.Linear(len(WIDTHS) * filters, classes)
        self.log_probabilities = log_probabilities

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point():
            raise TypeError(f"textcnn needs token ids (whole numbers), not {tokens.dtype}")
        features = self.convolutions(self.embedding(tokens)).relu()
        scores: Tensor = self.fc(self.dropout(features))
        return scores.log_softmax(-1) if self.log_probabilities else scores


def textcnn(shape: tuple[int, ...], classes: int, vocabulary: int = VOCABULARY, padding: int = PAD) -> nn.Module:
    """Embedding of 512, convolutions of widths 3, 4 and 5 with 100 filters each, max over time, dropout 0.8; gives logits."""
    _check(shape)
    return TextCNN(classes, vocabulary, padding=padding)


def textcnn_published(shape: tuple[int, ...], classes: int, vocabulary: int = VOCABULARY, padding: int = PAD) -> nn.Module:
    """The same ending in log_softmax, as published. Cross-entropy takes a log_softmax itself, and that of log-probabilities
    changes nothing: loss and gradient are the same, but for rounding."""
    _check(shape)
    return TextCNN(classes, vocabulary, log_probabilities=True, padding=padding)


def _check(shape: tuple[int, ...]) -> None:
    if len(shape) != 1 or shape[0] < max(WIDTHS):
        raise ValueError(f"textcnn needs sequences of at least {max(WIDTHS)} token ids, not samples of shape {list(shape)}")
