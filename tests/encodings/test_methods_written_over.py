"""Every public method that a user's class may write over counts on every path, or is refused; none is passed by."""

import pytest
import torch
import torch._dynamo

import whorl
from registry_cases import HEAD_DIM, HEADS, NAMES, WIDTH, build, hidden_for, tokens
from whorl.encodings.base import Branch, Encoding
from whorl.encodings.parts import OF_HOOK

LENGTH = 9
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on the CPU kernels run in Triton's interpreter

# Methods that build, describe or copy an encoding: what they say is asked for before there is a path.
NO_RESULTS = {
    "Config",
    "config",
    "declare",
    "enters",
    "extend",
    "extra_repr",
    "from_config",
    "from_hf",
    "joined",
    "parts",
}
NO_RESULTS |= {"claims", "reset_parameters", "axes", "heads", "causal_only", "length_dependent", "key_policy"}
READINGS = {"key_bias", "query_limit"}  # what no result is made of

# Methods of the base that only some encodings have a use for: with branches, a product as bias, queries in numbers.
OF_SOME = {"fold", "fold_fits", "scale_queries", "transform_branch", "linear_qk"}

# What is decided by other methods, and what tells kernels of a hook.
REFUSED = {"counts_tokens", "fold_dims", "folds", "one_branch", "reach", "reads_hidden", "scales_queries_only"}
REFUSED |= {
    "bias_between",
    "bucket",
    "counted_tables",
    "curve_numbers",
    "fold",
    "fold_fits",
    "formed_lines",
    "line",
    "within_documents",
    "line_numbers",
}
REFUSED |= {"rotation", "rows_by_count", "rows_by_distance", "running_sums"}


def altered(value):
    """Another value of the same kind; None where there is none."""
    if isinstance(value, torch.Tensor):
        if value.shape[-1:] == (HEAD_DIM,) and value.ndim == 4:  # queries, keys: not what a sum of weights divides away
            return value * torch.linspace(0.75, 1.25, HEAD_DIM, device=value.device)
        if value.dtype == torch.bool:  # fewer keys, never the query's own
            near = torch.ones(value.shape[-2:], dtype=torch.bool, device=value.device).tril(
                value.shape[-1] - value.shape[-2]
            )
            return value & ~near.tril(value.shape[-1] - value.shape[-2] - 3)
        return value * 1.25 if value.is_floating_point() else value // 2
    if isinstance(value, Branch):
        return value._replace(q_positions=value.q_positions + 1)
    if isinstance(value, tuple):
        items = [altered(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, str):
        return "interleaved" if value == "half" else "half"
    return value * 1.25 if isinstance(value, float) else None


def methods(encoding):
    """The names of public methods and properties that a subclass may write over; of hooks, those that it uses."""
    used = {part.hook for part in encoding.parts} | ({"remember"} if encoding.reads_hidden else set())
    unused = {*OF_HOOK, "remember"} - used
    for name in dir(type(encoding)):
        owner = next((each for each in type(encoding).__mro__ if name in each.__dict__), object)
        plain = issubclass(owner, Encoding) and not isinstance(owner.__dict__[name], (classmethod, staticmethod))
        if plain and not name.startswith("_") and name not in NO_RESULTS | READINGS | unused:
            yield name


class Written:
    """An encoding whose class writes a method over, and whether anybody asked for that."""

    def __init__(self, encoding, name):
        self.asked = self.changes = False
        cls = type(encoding)

        def result(value):
            self.asked, other = True, altered(value)
            self.changes |= other is not None
            return value if other is None else other

        if isinstance(getattr(cls, name), property):
            own = property(lambda own: result(getattr(super(type(own), own), name)))
        else:

            def own(own, *args, **options):
                return result(getattr(super(type(own), own), name)(*args, **options))

        self.encoding = type(cls)("Own", (cls,), {name: own}).from_config(encoding.config)
        self.encoding.load_state_dict(encoding.state_dict())


def stepped(encoding, qkv, hidden, size, **options):
    cache, outs = whorl.KVCache(encoding=encoding, **options), []
    for start in range(0, LENGTH, size):
        at = slice(start, start + size)
        here = {name: x[:, at] for name, x in hidden.items()}
        outs.append(cache.attend(*(x[:, :, at] for x in qkv), **here))
    return torch.cat(outs, 2)


def results(encoding):
    """What an encoding gives, by what is computed: ways to the same result stand together."""
    q, k, v = tokens(LENGTH)
    hidden, at = hidden_for(encoding, LENGTH), torch.arange(LENGTH)
    at = at if encoding.axes == 1 else at.expand(encoding.axes, -1)
    other = at.clone()

    def attend(**options):
        return whorl.attention(q, k, v, encoding=encoding, **hidden, **options)

    def placed(*positions, **options):
        return torch.cat(encoding.transform_qk(q, k, *positions, **options), 1)

    def linear(**options):
        return whorl.linear_attention(q, k, v, encoding=encoding, **options)

    rotated = isinstance(encoding, whorl.Rope)
    groups = [
        [
            lambda: attend(impl="torch"),
            attend,
            lambda: attend(positions=at, key_positions=at),
            lambda: attend(positions=at, key_positions=other),
            lambda: attend(impl="torch", positions=at, key_positions=other),
            lambda: stepped(encoding, (q, k, v), hidden, 1),
            lambda: stepped(encoding, (q, k, v), hidden, 4),
            lambda: stepped(encoding, (q, k, v), hidden, 4, policy="raw"),
        ],
        [
            lambda: placed(at, at),
            lambda: placed(at, other),
            *([lambda: placed(at, at, impl="torch")] if rotated else []),
        ],
        [linear, lambda: linear(impl="torch"), lambda: linear(positions=at, key_positions=other)],
        [lambda: encoding.add_to_input(torch.linspace(-1, 1, WIDTH).expand(2, LENGTH, -1), at)],
    ]
    found = []
    for ways in groups:
        gave = []
        for way in ways:
            try:
                gave.append(way())
            except whorl.WhorlError as error:
                gave.append(str(error))
        found.append(gave)
    return found


def alike(one, two):
    if isinstance(one, str) or isinstance(two, str):
        return isinstance(one, str) and isinstance(two, str)
    return one.shape == two.shape and torch.allclose(one, two, rtol=0, atol=3e-5, equal_nan=True)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:T5:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_method_counts_on_every_path_or_is_refused(name):
    encoding = build(name)
    plain = results(encoding)
    for method in methods(encoding):
        try:
            written = Written(encoding, method)
        except whorl.WhorlError as error:
            assert f"{method} " in str(error) and method in REFUSED
            continue
        got = results(written.encoding)
        for ways, before in zip(got, plain, strict=True):
            given = [way for way in ways if not isinstance(way, str)]
            assert all(alike(way, given[0]) for way in given), method
            assert [isinstance(way, str) for way in ways] == [isinstance(way, str) for way in before], (method, ways)
        every = [pair for ways in zip(got, plain, strict=True) for pair in zip(*ways, strict=True)]
        assert any(not alike(*pair) for pair in every) == written.changes, method
        assert written.asked or method in OF_SOME, method


def by_kernel(way):
    """What a way gives, twice, as the first call leaves ready what runs the second; nothing where it is refused."""
    try:
        return [way(), way()]
    except whorl.WhorlError:
        return []


MADE_OF = {
    "rope": ("frequencies", "tables", "turn", "rotate", "layout", "attention_factor", "transform_qk", "linear_qk"),
    "mrope": ("frequencies", "turn"),
    "rerope": ("turn", "branches", "transform_branch"),
    "xpos": ("transform_qk", "linear_qk"),
    "alibi": ("bias_of", "bias_at", "slopes", "score_bias"),
    "t5": ("bias_of",),
    "kerple": ("bias_of",),
    "fire": ("bias_at",),
    "sandwich": ("weights",),
    "shaw": ("add_terms", "adjust_output"),
    "forgetting_gate": ("add_terms", "remember"),
    "ssmax": ("query_factor", "transform_qk"),
    "window": ("mask",),
}
QUICK = {("rope", "frequencies"), ("rope", "turn"), ("rope", "layout"), ("alibi", "bias_of"), ("alibi", "slopes")}
CASES = [
    pytest.param(name, method, marks=() if DEVICE == "cuda" or (name, method) in QUICK else pytest.mark.large)
    for name, chosen in MADE_OF.items()
    for method in chosen
]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:T5:UserWarning")
@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_method_counts_in_kernels(name, method):
    encoding = Written(build(name), method).encoding.to(DEVICE)
    q, k, v = (x.to(DEVICE) for x in tokens(40))
    hidden = {key: x.to(DEVICE) for key, x in hidden_for(encoding, 40).items()}

    def attend(impl):
        return whorl.attention(q, k, v, encoding=encoding, impl=impl, **hidden)

    def step(impl):
        cache = whorl.KVCache(encoding=encoding, capacity=48)
        for part in (slice(0, 39), slice(39, 40)):
            here = {key: x[:, part] for key, x in hidden.items()}
            out = cache.attend(*(x[:, :, part] for x in (q, k, v)), impl=impl if part.start else "torch", **here)
        return out

    def linear(impl):
        return whorl.linear_attention(q, k, v, encoding=encoding, impl=impl)

    for way in (attend, step, linear):
        true = by_kernel(lambda way=way: way("torch"))
        for impl in ("auto", "triton"):
            for got in by_kernel(lambda way=way, impl=impl: way(impl)):
                torch.testing.assert_close(got, true[0], rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("method", ["frequencies", "tables", "turn", "rotate"])
@pytest.mark.parametrize("name", ["rope", pytest.param("mrope", marks=pytest.mark.large)])
def test_a_method_counts_in_a_compiled_call(name, method):
    encoding, at = Written(build(name), method).encoding, torch.arange(LENGTH)
    q, k, v = tokens(LENGTH)

    def attend(positions, key_positions):
        return whorl.attention(q, k, v, encoding=encoding, positions=positions, key_positions=key_positions)

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(at, at), attend(at, at.clone()), rtol=0, atol=1e-5)
    torch.testing.assert_close(compiled(at, at.clone()), attend(at, at), rtol=0, atol=1e-5)


class Doubled(whorl.Rope):
    def turn(self, x, tables, **options):
        return 2 * super().turn(x, tables, **options)


@torch.no_grad()
def test_turns_of_ones_own_count_in_models_and_where_keys_move():
    encoding, plain, at = Doubled(head_dim=HEAD_DIM), whorl.Rope(head_dim=HEAD_DIM), torch.arange(LENGTH)
    q, k, _ = tokens(LENGTH)
    for positions in (at, at.clone()):
        for got, true in zip(encoding.transform_qk(q, k, at, positions), plain.transform_qk(q, k, at, at), strict=True):
            torch.testing.assert_close(got, 2 * true, rtol=0, atol=1e-6)
    # twice at the way there, and twice at the way back
    torch.testing.assert_close(encoding.rotate(encoding.rotate(q, at), at, inverse=True), 4 * q, rtol=0, atol=1e-5)
    moved = whorl.rerotate(plain.rotate(k, at), plain, encoding, at, new_positions=at + 5)
    torch.testing.assert_close(moved, encoding.rotate(k, at + 5), rtol=0, atol=1e-5)
    torch.manual_seed(0)
    model = whorl.models.Decoder(vocab=20, layers=2, width=WIDTH, heads=HEADS, encoding=encoding).eval()
    ids, caches = torch.arange(LENGTH)[None], None
    whole, caches, steps = model(ids), model.caches(), []
    for i in range(LENGTH):
        steps.append(model.step(ids[:, i : i + 1], caches))
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-4)


def test_a_rotation_that_cannot_be_undone_is_refused():
    class Placed(whorl.Rope):
        def transform_qk(self, q, k, q_positions, k_positions, length=None, **options):
            return super().transform_qk(q, k, 2 * q_positions, 2 * k_positions, length, **options)

    rope, own = whorl.Rope(head_dim=HEAD_DIM), Placed(head_dim=HEAD_DIM)
    with pytest.raises(
        whorl.WhorlError, match="rerotate: new is Placed, whose transform_qk does more than its rotation"
    ):
        whorl.rerotate(tokens(LENGTH)[1], rope, own, torch.arange(LENGTH))


def test_what_follows_from_other_methods_cannot_be_written_over():
    with pytest.raises(whorl.WhorlError, match="Mine: rotation follows from layout, and some paths would not ask for"):

        class Mine(whorl.Rope):
            def rotation(self):
                return super().rotation()

    class Folded(whorl.Alibi):
        def fold(self, *given, **options):
            return super().fold(*given, **options)

    with pytest.raises(whorl.WhorlError, match="Folded: fold tells kernels what score_bias computes, which is not"):
        Folded(heads=HEADS)

    class Declared(Folded):
        def declare(self):
            return super().declare()

    class Both(Folded):
        def bias_of(self, head, distance):
            return super().bias_of(head, distance)

    assert Declared(heads=HEADS).folds and not Both(heads=HEADS).folds


@torch.no_grad()
def test_a_table_that_learns_is_made_anew():
    class Slower(whorl.Rope):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.rate = torch.nn.Parameter(torch.ones(1))

        def tables(self, positions, length=None, **options):
            return super().tables(positions * self.rate, length, **options)

    encoding, plain, at = Slower(head_dim=HEAD_DIM), whorl.Rope(head_dim=HEAD_DIM), torch.arange(LENGTH)
    q, k, v = tokens(LENGTH)
    for rate in (1.0, 0.5):
        encoding.rate.fill_(rate)
        torch.testing.assert_close(encoding.rotate(q, at), plain.rotate(q, rate * at), rtol=0, atol=1e-5)
        out = whorl.attention(q, k, v, encoding=encoding)
        torch.testing.assert_close(
            out,
            whorl.attention(q, k, v, encoding=plain, positions=rate * at, key_positions=rate * at),
            rtol=0,
            atol=1e-5,
        )


def test_heads_that_turn_by_themselves_take_positions_given_once_or_twice():
    mixed, x, at = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS), tokens(LENGTH)[0][0], whorl.grid(3, 3)
    for got, true in zip(mixed.transform_qk(x, x, at, at), mixed.transform_qk(x, x, at, at.clone()), strict=True):
        torch.testing.assert_close(got, true)
