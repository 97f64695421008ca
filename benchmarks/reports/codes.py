"""Tables of caches that are stored as codes: time, and time next to bytes and quality."""

from benchmarks.end_to_end.quality import CODED
from benchmarks.reports.markdown import ms, share, speed_up, table
from benchmarks.reports.quality import Row, quality_cells, quality_rows
from benchmarks.suites.decode_cache import DecodeCase, Stored
from benchmarks.suites.decode_codes import SHAPES, codes, sparse_codes
from gossamer.bench import Record
from gossamer.bench.peers import Peers
from gossamer.ops import BACKENDS

FILE = "decode_codes"  # of the results: one run, with peers of its own
HEAD_DIM = 128  # of the times next to qualities, which are SmolLM2's, with heads of 64
FAST = 2.0  # what the README's caches decode at least, as a multiple of dense
KIVI = "k=dense:int4@channel,v=dense:int4@group"
SPARSE = "k=sparse:32:int4@channel,v=sparse:32:int4,v_basis=pca,k_policy=gradient,sink=32"

# Specs of measured quality, and the cache with the same share of each row at HEAD_DIM.
TIMED = {
    CODED[0]: "coded 23%",
    CODED[1]: "coded 20%",
    CODED[3]: "coded 14%",
    KIVI: "KIVI-4",
    "dense:int4": "int4",
    "dense:int8": "int8",
    SPARSE: "keep 64 int4, K by channel",
}
RECOMMENDED = (CODED[0], CODED[1], CODED[3], KIVI, "dense:int4")


def decode_codes(records: list[Record]) -> str:
    """Every point of the run, with the fastest dense peer at its shape."""
    peer_of = Peers(records)
    rows = []
    for record in records:
        if record.backend in BACKENDS:
            batch, _, kv_heads, context, head_dim = record.shape
            shape = [f"{n:,}" for n in (batch, kv_heads, context, head_dim)]
            peer = peer_of(record)
            times = [ms(peer), ms(record), speed_up(record, peer)]
            limit = f"{record.facts['byte_limit']:.2f}x"
            rows.append([*shape, record.dtype, _name(record), *times, limit, share(record)])
    columns = ["batch", "KV heads", "context", "head_dim", "dtype", "cache"]
    return table(
        [*columns, "best dense peer", "gossamer", "speed-up", "limit", "of copy"],
        rows,
    )


def recommended(records: list[Record]) -> str:
    """Bytes, quality and time of the caches that decode fast."""
    fast = [spec for spec in RECOMMENDED if (speed_up_of(records, spec) or 0) >= FAST]
    return _caches(records, fast)


def timed(records: list[Record]) -> str:
    """The same of every cache of which both were measured."""
    return _caches(records, list(TIMED))


def _caches(records: list[Record], specs: list[str]) -> str:
    measured = {row["spec"]: row for row in quality_rows()}
    rows = [_row(records, measured[spec]) for spec in specs]
    return table(["`--kv`", "bytes", "change in NLL", "lookup", "decode attention"], rows)


def _row(records: list[Record], row: Row) -> list[str]:
    ratio = speed_up_of(records, row["spec"])
    return [*quality_cells(row), "-" if ratio is None else f"{ratio:.2f}x"]


def speed_up_of(
    records: list[Record], spec: str, shape: tuple[int, int, int] = SHAPES[0]
) -> float | None:
    """Time of the fastest dense peer over that of a cache of TIMED; None where it was not timed."""
    k, v = _stored(HEAD_DIM)[TIMED[spec]]
    case = DecodeCase(*shape, head_dim=HEAD_DIM, k=k, v=v)
    peer_of = Peers(records)
    for record in records:
        same = (tuple(record.shape), record.variant) == (case.shape, case.variant)
        if same and record.dtype == "float16" and (peer := peer_of(record)) is not None:
            return peer.median_ms / record.median_ms
    return None


def _stored(head_dim: int) -> dict[str, tuple[Stored, Stored]]:
    """K and V by the names of the suite."""
    return codes(head_dim) | sparse_codes()


def _name(record: Record) -> str:
    """As in the suite, where profiles have short names."""
    batch, _, kv_heads, context, head_dim = record.shape
    for name, (k, v) in _stored(head_dim).items():
        if (
            DecodeCase(batch, kv_heads, context, head_dim=head_dim, k=k, v=v).variant
            == record.variant
        ):
            return name
    return record.variant
