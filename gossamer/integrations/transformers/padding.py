"""Which tokens of a padded batch are real."""

from torch import Tensor

LEFT = "tokenizer.padding_side = 'left'"


def new_tokens(mask: Tensor | None, columns: int, lengths: list[int], seen: int) -> list[int]:
    """How many of the last `columns` of each row are real; those before are padding.

    mask: bool [rows, seen + columns], None for no padding. lengths: real tokens that rows have
    already, of `seen` columns. Raises ValueError for padding on the right or in between, and for a
    mask that does not fit the tokens from before.
    """
    rows = len(lengths)
    if mask is None:
        return [columns] * rows
    if mask.dim() != 2 or list(mask.shape) != [rows, seen + columns]:
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)}; must be [{rows}, {seen + columns}]: "
            f"{seen} tokens from before and {columns} new ones"
        )
    if columns == 1:  # in every step of generation, where waiting for more would cost time
        new = mask[:, -1:].cpu()
    else:
        host = mask.cpu()
        new = host[:, seen:]
        before = host[:, :seen].sum(1).tolist()
        if before != lengths:
            raise ValueError(
                f"attention_mask has {before} tokens from before, and the cache has {lengths}; "
                "pass the mask of the whole sequences, or reset() the cache"
            )
    counts: list[int] = new.sum(1).tolist()
    check_left(new)
    return counts


def check_left(mask: Tensor) -> None:
    """ValueError unless each row of the mask [rows, columns] is padding, then a token or more."""
    host = mask.bool().cpu()
    for row, tokens in enumerate(host):
        count = int(tokens.sum())
        if not bool(tokens[len(tokens) - count :].all()):
            raise ValueError(
                f"row {row} of attention_mask has padding after tokens; must be on the left: {LEFT}"
            )
        if count == 0:
            raise ValueError(f"row {row} of attention_mask has no token; must have at least one")
