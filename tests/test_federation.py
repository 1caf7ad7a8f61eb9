"""Federations from arrays: what is kept, and errors that name the client."""

import warnings

import numpy as np
import pytest
import torch

import fedfew
from fedfew import Federation
from fedfew.federation import as_input


def client(n=4, shape=(3,), dtype=np.float32, label=0):
    return np.zeros((n, *shape), dtype), np.full(n, label)


def test_samples_stay_with_their_client():
    train = [(np.full((n, 2), i, np.float32), np.full(n, i)) for i, n in enumerate((3, 1, 2))]
    federation = Federation.from_arrays(train, train)
    assert len(federation) == 3
    assert federation.classes == 3
    assert federation.shape == (2,)
    assert federation.train.longest == 3
    for i, (x, y) in enumerate(train):
        got_x, got_y = federation.train.of(i)
        assert torch.equal(got_x, torch.from_numpy(x))
        assert torch.equal(got_y, torch.from_numpy(y))


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (np.float64, torch.float32),
        (np.float16, torch.float32),
        (np.uint8, torch.uint8),
        (np.int32, torch.int64),
        (bool, torch.float32),
    ],
)
def test_stored_types(dtype, stored):
    assert Federation.from_arrays([client(dtype=dtype)], [client(dtype=dtype)]).train.x.dtype == stored


def test_torch_tensors_and_lists_are_taken():
    pair = torch.zeros(4, 3), [0, 1, 0, 1]
    assert Federation.from_arrays([pair], [pair]).classes == 2


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([client()], None, r"test must be a list of pairs .*, not None \(fedfew.data.load makes a test split\)"),
        (zip([1], [2], strict=True), [client()], r"train must be a list of pairs \(x, y\), one per client, not zip"),
        ([range(5)], [client()], r"a pair \(x, y\), not range \(fedfew.data.load takes data sets\)"),
        ({"Basel": client()}, [client()], r"not a dict: give its values, and client_names=list\(train\)"),
        ([client(), client()], [client(), None], r"client 1: test must be a pair \(x, y\), not None"),
        ([(*client(), 1)], [client()], r"client 0: train must be a pair \(x, y\), not tuple"),
    ],
)
def test_what_is_no_list_of_pairs_is_refused(train, test, message):
    with pytest.raises(TypeError, match=message):
        Federation.from_arrays(train, test)


def test_tensors_that_require_gradients_are_taken_as_they_are():
    pair = torch.ones(2, 3, requires_grad=True), [0, 1]
    x = Federation.from_arrays([pair], [pair]).train.x
    assert not x.requires_grad
    assert x.tolist() == [[1, 1, 1]] * 2


def test_arrays_that_cannot_be_written_to_are_taken_without_a_warning():
    x, y = client()
    x.flags.writeable = y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Federation.from_arrays([(x, y)], [(x, y)], classes=2).classes == 2


def test_complex_numbers_are_refused():
    pair = client(dtype=np.complex64)
    with pytest.raises(ValueError, match=r"client 0: train samples are complex numbers \(torch.complex64\): give their real"):
        Federation.from_arrays([pair], [pair])


def test_bytes_are_pixels():
    assert as_input(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1, 1]
    tokens = torch.tensor([3, 7])
    assert as_input(tokens) is tokens


def test_take_keeps_identity():
    federation = Federation.from_arrays([client(n, label=n % 3) for n in (4, 5, 6)], [client()] * 3, groups=[0, 1, 1])
    chosen = federation.take([2, 0])
    assert chosen.ids.tolist() == [2, 0]
    assert chosen.groups.tolist() == [1, 0]
    assert chosen.train.count.tolist() == [6, 4]
    assert torch.equal(chosen.train.of(0)[1], federation.train.of(2)[1])


def test_fingerprint_tells_data_apart():
    base = Federation.from_arrays([client(), client()], [client(), client()])
    other = client()
    other[1][0] = 1
    changed = Federation.from_arrays([client(), other], [client(), client()], classes=2)
    assert base.fingerprint() == Federation.from_arrays([client(), client()], [client(), client()]).fingerprint()
    assert len({base.fingerprint(), changed.fingerprint(), base.take([1, 0]).fingerprint()}) == 3


NAN = np.zeros((4, 3), np.float32)
NAN[2, 1] = np.nan


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (client(n=0), "client 1: train has no samples"),
        (client(shape=(4,)), r"client 1: train samples are \[4\]"),
        (client(dtype=np.uint8), "client 1: train samples are"),
        ((np.zeros((4, 3)), np.zeros(5)), "client 1: train has 4 samples but labels of shape"),
        ((np.zeros((4, 3)), np.array([0, 1, 0, 7])), r"client 1: train labels run from 0 to 7.*\(3 classes\)"),
        ((np.zeros((4, 3)), np.array([0, -1, 0, 1])), "client 1: train labels run from -1"),
        ((np.zeros((4, 3)), np.array([0, 0.5, 0, 1])), "client 1: train labels must be whole"),
        ((NAN, np.zeros(4)), "client 1: train sample 2 contains NaN"),
        ((np.array([np.nan, 0.0]), np.zeros(2)), "client 1: train sample 0 contains NaN"),
        ((np.array(["a", "b"]), np.zeros(2)), "client 1: train samples cannot be read"),
    ],
)
def test_bad_clients_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays([client(), bad], [client(), client()], classes=3)


def test_the_test_split_is_checked_too():
    with pytest.raises(ValueError, match="client 0: test has no samples; every client needs at least one in each split"):
        Federation.from_arrays([client()], [client(n=0)])
    with pytest.raises(ValueError, match="train has 1 clients, but test has 2"):
        Federation.from_arrays([client()], [client(), client()])
    with pytest.raises(ValueError, match="at least one client"):
        Federation.from_arrays([], [])


def test_digits_by_rotation():
    federation = fedfew.data.digits(clients=8, seed=3)
    assert federation.groups.tolist() == [0, 1, 2, 3] * 2
    assert federation.shape == (1, 8, 8)
    upright = fedfew.data.digits(clients=8, partition="iid", seed=3)
    assert torch.equal(federation.train.of(0)[0], upright.train.of(0)[0])
    turned = torch.rot90(upright.train.of(5)[0], 1, (2, 3))
    assert torch.equal(federation.train.of(5)[0], turned)
    assert int(federation.train.count.sum() + federation.test.count.sum()) == 1797


def test_digits_by_dirichlet():
    skewed, even = (fedfew.data.digits(clients=6, partition="dirichlet", alpha=a, seed=1) for a in (0.1, 100.0))

    def largest_share(federation):
        return np.mean([np.bincount(federation.train.of(i)[1]).max() / federation.train.count[i] for i in range(6)])

    assert int(skewed.train.count.sum() + skewed.test.count.sum()) == 1797
    assert largest_share(skewed) > 0.3 > 0.2 > largest_share(even)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition": "rotations"}, "did you mean 'rotation'"),
        ({"partition": "dirichlet", "alpha": 0}, "alpha must be"),
        ({"partition": "dirichlet", "clients": 2000}, "too few"),
        ({"partition": "iid", "clients": 2000}, "too few"),
        ({"test_share": 1.0}, "test_share must lie"),
        ({"partition": "dirichlet", "clients": 60, "alpha": 0.001}, "1000 draws"),
    ],
)
def test_bad_digits(arguments, message):
    with pytest.raises(ValueError, match=message):
        fedfew.data.digits(**arguments)


def test_labels_in_words_are_numbered_and_named():
    x = np.zeros((2, 3), np.float32)
    train = [(x, ["owl", "cat"]), (x, np.array(["cat", "dog"]))]
    federation = Federation.from_arrays(train, train)
    assert federation.class_names == ("cat", "dog", "owl")
    assert federation.train.y.tolist() == [2, 0, 0, 1]
    ordered = Federation.from_arrays(train, train, class_names=["owl", "dog", "cat", "ant"])
    assert ordered.train.y.tolist() == [0, 2, 2, 1]
    assert ordered.classes == 4
    with pytest.raises(ValueError, match="client 1: train labels contain gaps, or words that are not in class_names"):
        Federation.from_arrays(train, train, class_names=["cat", "owl"])
    with pytest.raises(ValueError, match="client 0: train labels contain gaps"):
        Federation.from_arrays([(x, ["owl", float("nan")])], train[:1])


def test_labels_that_are_not_numbered_from_0_are_noticed():
    x = np.zeros((3, 2), np.float32)
    with pytest.warns(UserWarning, match="labels run from 1 to 3, so that 1 of 4 classes have no samples: number them from 0"):
        assert Federation.from_arrays([(x, np.array([1, 2, 3]))], [(x, np.array([3, 3, 3]))]).classes == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation.from_arrays([(x, np.array([1, 2, 3]))], [(x, np.array([3, 3, 3]))], classes=4)
        Federation.from_arrays([(x, np.array([1, 2, 3]))], [(x, np.array([0, 3, 3]))])


def test_one_hot_labels_are_class_numbers():
    pair = np.zeros((3, 2), np.float32), torch.eye(3)[[2, 0, 1]]
    assert Federation.from_arrays([pair], [pair]).train.y.tolist() == [2, 0, 1]


def test_names_of_clients_and_classes_follow():
    federation = Federation.from_arrays([client()] * 3, [client()] * 3, classes=2, client_names=["a", "b", "c"])
    assert federation.class_names == ("0", "1")
    assert federation.take([2, 0]).client_names == ("c", "a")
    assert federation.take([1]).to("cpu").client_names == ("b",)
    unnamed = Federation.from_arrays([client()] * 3, [client()] * 3)
    assert unnamed.take([2, 0]).client_names == ("2", "0")
    assert unnamed.fingerprint() == Federation.from_arrays([client()] * 3, [client()] * 3, client_names="xyz").fingerprint()
    with pytest.raises(ValueError, match="client_names has 2 names, but 3 are needed"):
        Federation.from_arrays([client()] * 3, [client()] * 3, client_names=["a", "b"])
    with pytest.raises(ValueError, match="class_names has 1 names, but 2 are needed"):
        Federation.from_arrays([client()] * 3, [client()] * 3, classes=2, class_names=["a"])


def test_a_summary_instead_of_samples():
    secret = np.full((5, 3), 4711.5, np.float32)
    federation = Federation.from_arrays(
        [client(), (secret, np.zeros(5))], [client()] * 2, client_names=["<b>Basel</b>", "Bern"], name="care"
    )
    assert repr(federation) == (
        "<Federation 'care': 2 clients, 1 classes, samples 3 float32; train 9 (4 to 5 per client), test 8 (4 per client)>"
    )
    html = federation._repr_html_()
    assert "<td>&lt;b&gt;Basel&lt;/b&gt;</td><td>4</td><td>4</td>" in html
    assert "<td>Bern</td><td>5</td><td>4</td>" in html
    for text in (repr(federation), html, repr(federation.train), str(federation)):
        assert "4711" not in text
    many = Federation.from_arrays([client()] * 40, [client()] * 40)._repr_html_()
    assert "and 10 more" in many


def test_words_and_numbers_as_labels_are_not_mixed():
    x, words, numbers = np.zeros((2, 3), np.float32), np.array(["a", "b"]), np.array([0, 1])
    with pytest.raises(ValueError, match="client 0: test labels are numbers, but those of others are words"):
        Federation.from_arrays([(x, words)], [(x, numbers)])
    with pytest.raises(ValueError, match="client 1: train labels are numbers, but those of others are words"):
        Federation.from_arrays([(x, words), (x, numbers)], [(x, words), (x, words)])


@pytest.mark.parametrize("rows", [np.eye(6)[:, :4] + 0.5, np.arange(24).reshape(6, 4), np.tri(6, 4)])
def test_labels_and_samples_the_wrong_way_round_are_told_apart(rows):
    swapped = (np.arange(6) % 2, rows)
    message = r"y is 4 numbers per sample and x one whole number: .* \(x, y\).* task=.* or give x as \[6, 1\]"
    for given in (swapped, (swapped[0].tolist(), torch.as_tensor(rows))):
        with pytest.raises(ValueError, match=message):
            Federation.from_arrays([given], [given])
    with pytest.raises(fedfew.data.DataError, match=message):
        fedfew.data.load(swapped, clients=1, partition="iid")
    assert Federation.from_arrays([swapped], [swapped], task="regression").classes == 4
    assert fedfew.data.load(swapped, clients=1, partition="iid", task="regression").classes == 4
    column = (swapped[0][:, None] + 0.0, rows + 0.25)
    assert Federation.from_arrays([column], [column]).task == "regression"
    one_hot = (np.arange(6), np.eye(6))
    assert Federation.from_arrays([one_hot], [one_hot]).task == "classification"
