"""Estimators with the interface of scikit-learn: ``fit(X, y, groups=client)``, ``predict(X, groups=client)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from fedfew import methods
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.models import ModelFactory
from fedfew.training.api import train
from fedfew.training.run import Run

ONLY = "all"  # the name of the one client where no groups are given


class _Federated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """
    n_models: K, at most the number of clients. model: a name ("linear", "mlp", …) or a zero-argument callable returning a module.
    method: None, ``FedFew(loss_at="received")``: clients report the losses of the models as received, which differ even where one
    round of training fits any model to a client; or a name or a method, with its own defaults. n_models is for those that have
    several models. standardize: features by the mean and standard deviation of all rows of ``fit``. random_state: of initial
    models and batches.
    settings: further settings of :func:`fedfew.train`, e.g. ``{"optimizer": "adam"}``.

    After ``fit``: ``clients_``, the different values of groups; ``run_``, the :class:`fedfew.Run`. All samples
    are trained on, so that the scores in ``run_.history`` are of training data.
    """

    def __init__(
        self,
        n_models: int = 3,
        *,
        model: str | ModelFactory | Callable[[], Any] = "mlp",
        method: str | Method | None = None,
        rounds: int = 30,
        local_epochs: int = 1,
        batch_size: int = 20,
        lr: float = 0.1,
        engine: str = "auto",
        device: str = "auto",
        standardize: bool = True,
        random_state: Any = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_models = n_models
        self.model = model
        self.method = method
        self.rounds = rounds
        self.local_epochs = local_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.engine = engine
        self.device = device
        self.standardize = standardize
        self.random_state = random_state
        self.settings = settings

    def _fitted(self, X: NDArray[Any], y: NDArray[Any], groups: ArrayLike | None, **about: Any) -> Self:
        self.clients_, number = _clients_of_rows(np.full(len(X), ONLY) if groups is None else groups, len(X))
        self.mean_, self.scale_ = _statistics(X) if self.standardize else (np.zeros(1), np.ones(1))
        X = self._scaled(X)
        parts = [(X[number == i], y[number == i]) for i in range(len(self.clients_))]
        names = _names(self.clients_)
        federation = Federation.from_arrays(parts, parts, name="samples", client_names=names, **about)
        self.run_: Run = train(
            federation,
            self.model,
            self._method(len(federation)),
            rounds=self.rounds,
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            engine=self.engine,
            device=self.device,
            seed=_seed(self.random_state),
            **({"score_every": self.rounds} | self._further()),
        )
        return self

    def _further(self) -> dict[str, Any]:
        """The settings that are no parameters of the estimator."""
        given = dict(self.settings or {})
        parameters = {name: name for name in self.get_params(deep=False)} | {"seed": "random_state"}
        for name in given:
            if name in parameters:
                raise ValueError(f"settings: {name} is the parameter {parameters[name]} of the estimator")
        return given

    def _method(self, clients: int) -> Method:
        if self.method is None:
            return methods.FedFew(models=min(self.n_models, clients), loss_at="received")
        if not isinstance(self.method, str):
            return self.method
        several = "models" in {f.name for f in fields(methods.METHODS[self.method])} if self.method in methods.METHODS else False
        return methods.make(self.method, **({"models": min(self.n_models, clients)} if several else {}))

    def _clients(self, groups: ArrayLike | None, rows: int) -> NDArray[np.str_] | None:
        """The client of each row, by name: where names are numbers, its position would be taken for another one's name."""
        if groups is None:
            if len(self.clients_) > 1 and not self.run_.one_for_all:
                raise ValueError(
                    f"groups is missing: the estimator was fitted for {len(self.clients_)} clients, which use different models. "
                    "Give the client of every row: predict(X, groups=…)"
                )
            return None
        clients, number = _clients_of_rows(groups, rows)
        names = dict(zip(self.clients_.tolist(), _names(self.clients_), strict=True))
        unknown = [str(client) for client in clients.tolist() if client not in names]
        if unknown:
            raise ValueError(
                f"groups has clients that took no part in fit: {', '.join(unknown[:5])}. For a new client with some labelled "
                "samples see run_.for_new_client(X, y)"
            )
        return np.array([names[client] for client in clients.tolist()], dtype=np.str_)[number]

    def _checked(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self)
        return self._scaled(validate_data(self, X, reset=False, dtype=np.float32))

    def _scaled(self, X: NDArray[Any]) -> NDArray[np.float32]:
        scaled: NDArray[np.float32] = ((X.astype(np.float64) - self.mean_) / self.scale_).astype(np.float32)
        return scaled


class FedFewClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]  # scikit-learn has no types
    """Few models for many clients: each client uses the one that fits its training samples best.

    groups: the client of every row. Without groups there is one client, and so one model. ``predict`` needs groups where ``fit``
    had several and clients use different models.
    {parameters}
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        x, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has only 1 class, but at least 2 are needed")
        return self._fitted(x, numbers, groups, classes=len(self.classes_), class_names=[str(c) for c in self.classes_.tolist()])

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:
        best = self.predict_proba(X, groups).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.float64]:
        """Probabilities of ``classes_``."""
        checked = self._checked(X)
        return self.run_.predict_proba(checked, self._clients(groups, len(checked)))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> float:
        """Accuracy over all rows."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class FedFewRegressor(RegressorMixin, _Federated):  # type: ignore[misc]  # scikit-learn has no types
    """The same for numbers: y [N] or [N, targets], standardised for training by the mean and standard deviation of all rows.
    {parameters}
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        x, given = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        targets = np.asarray(given, dtype=np.float64)
        self.target_mean_, self.target_scale_ = _statistics(targets)
        return self._fitted(x, ((targets - self.target_mean_) / self.target_scale_).astype(np.float32), groups, task="regression")

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.float64]:
        checked = self._checked(X)
        found = self.run_.predict(checked, self._clients(groups, len(checked)))
        values: NDArray[np.float64] = found * self.target_scale_ + self.target_mean_
        return values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> float:
        """R² over all rows."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))


for _estimator in (FedFewClassifier, FedFewRegressor):
    _estimator.__doc__ = (_estimator.__doc__ or "").format(parameters=_Federated.__doc__)


def _statistics(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation per column; 1 in place of 0."""
    mean, spread = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
    return mean, np.where(spread > 0, spread, 1.0)


def _clients_of_rows(groups: ArrayLike, rows: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The clients, sorted, and of each row the number of its client among them."""
    if np.ndim(groups) == 0:
        raise ValueError(f"groups is one value, {groups!r}: give one per row, as [{groups!r}] * len(X)")
    column = column_or_1d(check_array(groups, ensure_2d=False, dtype=None))
    if len(column) != rows:
        raise ValueError(f"groups has {len(column)} values for {rows} rows: give one per row")
    try:
        return np.unique(column, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"groups has values of types that cannot be compared ({error}): give all as text") from error


def _names(clients: NDArray[Any]) -> list[str]:
    return [str(client) for client in clients.tolist()]


def _seed(random_state: Any) -> int:
    """A number as it is; a generator or None draws one."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
