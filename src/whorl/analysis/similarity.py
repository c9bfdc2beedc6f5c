"""Similarity of positions: the codes added at the input, their products, and how they lie in space."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from whorl import Encoding, Learned, Sinusoidal
from whorl.analysis.wavelengths import Array, real, whole
from whorl.errors import WhorlError, invalid


class Terms(NamedTuple):
    """The four terms of <q + p_m, k + p_n>; only the last depends on m - n alone for sinusoidal codes."""

    content: Array  # <q, k>
    query_position: Array  # <q, p_n>
    position_key: Array  # <p_m, k>
    position: Array  # <p_m, p_n>


class Projection(NamedTuple):
    """Points in a few dimensions, and the share of the variance along each (None where it has no meaning)."""

    points: Array
    shares: Array | None


def codes_of(encoding: Encoding, positions: ArrayLike) -> Array:
    """The codes that an input encoding adds at these whole positions, shape (positions, width).

    >>> import whorl
    >>> codes_of(whorl.Sinusoidal(width=4), [2]).round(4).tolist()
    [[0.9093, -0.4161, 0.02, 0.9998]]
    """
    ids = torch.from_numpy(whole("codes_of", "positions", positions))
    if isinstance(encoding, Sinusoidal):
        return encoding.codes(ids, dtype=torch.float64).numpy()
    if isinstance(encoding, Learned):
        nothing = torch.zeros(1, ids.numel(), encoding.config.width, dtype=torch.float64)
        return encoding.add_to_input(nothing, ids)[0].detach().numpy()
    raise WhorlError(
        f"codes_of: {encoding.config.name} adds no code to the input. Use sinusoidal or learned; for an encoding of "
        "scores see whorl.analysis.scores."
    )


def products(codes: ArrayLike) -> Array:
    """<p_i, p_j> of every two codes, shape (positions, positions)."""
    codes = _matrix("products", codes)
    return codes @ codes.T


def pca(codes: ArrayLike, components: int = 2) -> Projection:
    """The codes along the directions in which they vary most, by SVD; each direction's largest entry is positive.

    >>> points, shares = pca([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], components=1)
    >>> points.round(4).ravel().tolist(), shares.round(4).tolist()
    ([-1.4142, 0.0, 1.4142], [1.0])
    """
    codes = _matrix("pca", codes)
    if not 1 <= components <= min(codes.shape):
        raise invalid("pca", "components", f"from 1 to {min(codes.shape)}", components)
    centred = codes - codes.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:components]
    largest = np.abs(directions).argmax(-1)
    directions *= np.sign(directions[np.arange(components), largest])[:, None]  # a sign is free: fix it
    variance = sizes**2
    total = variance.sum()
    return Projection(centred @ directions.T + 0.0, variance[:components] / (total if total else 1.0))


def tsne(codes: ArrayLike, *, perplexity: float = 30.0, seed: int = 0) -> Projection:
    """The codes in two dimensions so that near ones stay near, by scikit-learn's t-SNE from the PCA of the codes.

    Distances between far groups mean nothing in it.
    """
    codes = _matrix("tsne", codes)
    if not 0 < perplexity < codes.shape[0]:
        remedy = "It is about how many neighbours a point has."
        raise invalid("tsne", "perplexity", f"between 0 and the number of codes, {codes.shape[0]}", perplexity, remedy)
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise WhorlError(
            "tsne: scikit-learn is not installed. Run: pip install scikit-learn, or use method='pca'."
        ) from None
    method = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed, method="exact")
    return Projection(method.fit_transform(codes).astype(np.float64), None)


def additive_terms(query: ArrayLike, key: ArrayLike, query_code: ArrayLike, key_code: ArrayLike) -> Terms:
    """The four terms of <q + p_m, k + p_n>, each summed over the last axis; their sum is the score before scaling.

    >>> [float(term) for term in additive_terms([1.0, 0.0], [2.0, 1.0], [0.0, 3.0], [1.0, 1.0])]
    [2.0, 1.0, 3.0, 3.0]
    """
    q, k, p, r = (real("additive_terms", "vectors", x) for x in (query, key, query_code, key_code))
    return Terms(*(np.asarray((a * b).sum(-1)) for a, b in ((q, k), (q, r), (p, k), (p, r))))


def _matrix(call: str, codes: ArrayLike) -> Array:
    codes = real(call, "codes", codes)
    if codes.ndim != 2 or codes.shape[0] < 2:
        raise invalid(call, "codes", "a matrix of at least 2 rows, one for each position", codes)
    return codes
