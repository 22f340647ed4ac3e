"""Facts with their source: the shapes of language models and the limits of GPUs, read from `data/models.json`."""

import json
from dataclasses import dataclass
from importlib.resources import files

import pint

from serving_lib.kvcache import calc_kv_bytes_per_token
from serving_lib.units import ureg


@dataclass(frozen=True)
class Model:
    """The shape of a decoder-only language model.

    Parameters
    ----------
    name : str
        As in `MODELS`.
    layers, query_heads, kv_heads, head_dim, hidden, ffn, vocab : int
        The shape. The KV cache is sized by `kv_heads`: with grouped-query attention several query heads share one.
    parameters : int
        Number of weights.
    source, parameters_source : str
        Where the shape and the number of weights come from.
    """

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    vocab: int
    parameters: int
    source: str
    parameters_source: str

    @property
    def kv_bytes_per_token(self):
        """Size of a token's keys and values at 16 bit; `calc_kv_bytes_per_token` knows other types."""
        return calc_kv_bytes_per_token(self.layers, self.kv_heads, self.head_dim)

    @property
    def weight_bytes(self):
        """Size of the weights at 16 bit."""
        return ureg.Quantity(2 * self.parameters, "byte")

    @property
    def flops_per_token(self):
        """Floating-point operations of one token outside attention: a multiplication and an addition per weight."""
        return 2 * self.parameters


@dataclass(frozen=True)
class GPU:
    """The limits of one GPU, as its datasheet gives them, and an example of its price.

    Parameters
    ----------
    name : str
        As in `GPUS`.
    flops_per_second : Quantity
        Peak rate of 16-bit tensor operations, without sparsity.
    bandwidth : Quantity
        Peak memory bandwidth.
    memory : Quantity
        Memory size.
    price : Quantity
        An example of what an hour cost: a parameter, to be replaced by the reader's own.
    source, price_source : str
        Where the limits and the price come from.
    """

    name: str
    flops_per_second: pint.Quantity
    bandwidth: pint.Quantity
    memory: pint.Quantity
    price: pint.Quantity
    source: str
    price_source: str

    @property
    def flops_per_byte(self):
        """Operations in the time of reading one byte: with 16-bit weights, the batch at which arithmetic binds."""
        return self.flops_per_second.m_as("flop/s") / self.bandwidth.m_as("byte/s")


class _ByName(dict):
    """A dict whose error lists the names that there are."""

    def __missing__(self, name):
        raise KeyError(f"no {name!r} here; there are: {', '.join(self)}")


def _read():
    facts = json.loads((files("serving_lib") / "data" / "models.json").read_text(encoding="utf-8"))
    models = _ByName((name, Model(name, **shape)) for name, shape in facts["models"].items())
    gpus = _ByName()
    for name, limits in facts["gpus"].items():
        gpus[name] = GPU(
            name=name,
            flops_per_second=ureg.Quantity(limits["tflop_per_second"] * 1e12, "flop/s"),
            bandwidth=ureg.Quantity(limits["tb_per_second"], "TB/s"),
            memory=ureg.Quantity(limits["gb"], "GB"),
            price=ureg.Quantity(limits["usd_per_hour"], "USD/hour"),
            source=limits["source"],
            price_source=limits["price_source"],
        )
    return models, gpus


MODELS, GPUS = _read()
