"""The KV cache: how many bytes a token takes, how many pages a request, and what the last page wastes."""

import numpy as np
import pint

from serving_lib.units import BYTES, POSITIVE, check_count, check_number, check_quantity, plain, registry_of


def calc_kv_bytes_per_token(layers, kv_heads, head_dim, bytes_per_value=2):
    """Calculate the size of one token's keys and values in all layers.

    Parameters
    ----------
    layers : int
        Positive number of layers.
    kv_heads : int
        Positive number of *key-value* heads. With grouped-query attention it is smaller than the number of query
        heads: 8 instead of 64 in Llama-2-70B.
    head_dim : int
        Positive dimension of one head.
    bytes_per_value : float or Quantity
        Positive bytes of one stored number: 2 for 16 bit, 1 for 8 bit, 0.5 for 4 bit. The type of the KV cache, which
        need not be that of the weights.

    Returns
    -------
    Quantity
        Bytes per token.

    Raises
    ------
    ValueError
        If an argument is not positive, or a count not whole.
    pint.DimensionalityError
        If a count carries a dimension, or the size of a number is not in bytes.
    TypeError
        If an argument is not a number.

    Notes
    -----
    2 x layers x KV heads x head dimension x bytes; the 2 is one key and one value. It excludes what attention variants
    save (sliding windows, shared layers, latent compression) and the metadata of pages.

    Taught in lecture 04, section 1. Breaks first when query heads are counted for KV heads.

    References
    ----------
    Kwon et al. (2023), Efficient Memory Management for Large Language Model Serving with PagedAttention, section 3.
    https://arxiv.org/abs/2309.06180

    Examples
    --------
    >>> from serving_lib import ureg
    >>> per_token = calc_kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128)
    >>> per_token
    <Quantity(327680, 'byte / token')>
    >>> (per_token * (128 * 1024 * ureg.token)).to("GB").round(1)
    <Quantity(42.9, 'gigabyte')>
    """
    values = 2
    for name, count in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
        values = values * check_count(name, count, minimum=1)
    registry = registry_of(bytes_per_value)
    if isinstance(bytes_per_value, pint.Quantity):
        bytes_per_value = check_quantity("bytes_per_value", bytes_per_value, BYTES, POSITIVE).m_as("byte")
    size = check_number("bytes_per_value", bytes_per_value, POSITIVE)
    return registry.Quantity(values * size, "byte / token")


def calc_kv_pages(tokens, page_size):
    """Calculate how many pages hold a number of tokens.

    Parameters
    ----------
    tokens : int or ndarray
        Nonnegative number of tokens, prompt and generated.
    page_size : int or ndarray
        Positive number of tokens that a page holds.

    Returns
    -------
    int or ndarray
        Whole pages; the last may be partly empty.

    Raises
    ------
    ValueError
        If an argument is outside its domain or not whole.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    ceil(tokens / page_size): in whole numbers.

    Taught in lecture 04, section 3. Breaks first when prefixes are shared.

    References
    ----------
    Kwon et al. (2023), Efficient Memory Management for Large Language Model Serving with PagedAttention, section 4.
    https://arxiv.org/abs/2309.06180

    Examples
    --------
    >>> calc_kv_pages(33, 16)
    3
    """
    tokens = check_count("tokens", tokens, minimum=0)
    page_size = check_count("page_size", page_size, minimum=1)
    pages = -(-tokens // page_size)
    return pages.astype(np.int64) if isinstance(pages, np.ndarray) else pages


def calc_last_page_waste(mean_tokens, page_size):
    """Calculate the mean share of the allocated KV cache that lies empty in the last page of each request.

    Parameters
    ----------
    mean_tokens : float or ndarray
        Positive mean number L of tokens of a request, prompt and generated.
    page_size : int or ndarray
        Positive number P of tokens that a page holds.

    Returns
    -------
    float or ndarray
        Wasted share, in [0, 1).

    Raises
    ------
    ValueError
        If an argument is outside its domain, or the page size not whole.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    w / (L + w) with w = (P - 1) / 2: where lengths are spread evenly over a page, its last one lacks 0 to P - 1 tokens
    with equal probability. It excludes reservation for tokens that are still to come, which paging removes.

    Taught in lecture 04, section 4. Breaks first when requests are not much longer than a page.

    References
    ----------
    Derivation above.

    Examples
    --------
    >>> round(calc_last_page_waste(161.31 + 337.99, page_size=16), 4)
    0.0148
    """
    length = check_number("mean_tokens", mean_tokens, POSITIVE)
    waste = (check_count("page_size", page_size, minimum=1) - 1) / 2
    return plain(waste / (length + waste))
