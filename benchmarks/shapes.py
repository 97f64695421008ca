"""The sizes that the pilot ops are measured at: [batch, tokens, hidden]."""


def pilot_shapes(device: str, quick: bool) -> list[tuple[int, ...]]:
    """Shapes for a device; one small one for a quick look."""
    if quick:
        return [(4, 128, 1024)]
    if device == "cpu":
        return [(1, 1, 4096), (1, 128, 1024), (4, 128, 4096), (16, 128, 4096)]
    # From a decode step of a few tokens to well past any cache.
    return [(1, 16, 4096), (16, 128, 4096), (16, 1024, 4096), (64, 1024, 4096), (32, 1024, 8192)]
