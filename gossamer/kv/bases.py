"""K's basis at run time: RoPE lies between it and the projections, so it cannot be folded in."""

from torch import Tensor


def turn_q_and_k(q: Tensor, k: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """q [..., Hq, T, D] and k [..., Hk, T, D], both after RoPE, in the basis [Hk, D, D] of K.

    The basis is orthogonal, so every score stays what it was; k is what a cache with k_basis=pca
    stores, and q must attend to it. Raises ValueError for shapes that do not fit.
    """
    kv_heads, head_dim = basis.shape[0], basis.shape[-1]
    for name, x in (("q", q), ("k", k)):
        heads = x.shape[-3] if x.dim() >= 3 else 0
        fits = heads % kv_heads == 0 if name == "q" else heads == kv_heads
        if x.dim() < 3 or not fits or x.shape[-1] != head_dim:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; must have {kv_heads} KV heads (or a multiple, "
                f"for q) of {head_dim}, as the basis {list(basis.shape)}"
            )
    return turn(q, basis), turn(k, basis)


def turn(x: Tensor, basis: Tensor) -> Tensor:
    """x [..., heads, T, D] in the basis [Hk, D, D] of its KV heads."""
    basis = basis.to(x.device, x.dtype)
    turned: Tensor = (x.unflatten(-3, (len(basis), -1)) @ basis.unsqueeze(1)).flatten(-4, -3)
    return turned
