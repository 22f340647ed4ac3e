"""Facts about models and GPUs: every number recomputed, or compared with another source."""

import json
import pathlib

import pytest

from serving_lib.kvcache import calc_kv_bytes_per_token
from serving_lib.models import GPUS, MODELS
from serving_lib.speculative import calc_speculative_break_even_batch
from serving_lib.units import ureg

FACTS = json.loads((pathlib.Path(__file__).parent / "golden" / "paper_facts.json").read_text())
CONFIGS = {fact["paper"]: fact for fact in FACTS if fact["theme"] == "models" and fact["where"] == "config.json"}
PARAMETERS = {
    fact["paper"]: fact["output"] for fact in FACTS if fact["theme"] == "models" and "config above" in fact["inputs"]
}
PUBLISHED_NAME = {"Mistral-7B": "Mistral-7B v0.1"}


def published(table, name):
    return table[PUBLISHED_NAME.get(name, name)]


@pytest.mark.parametrize("name", MODELS)
def test_a_models_shape_is_that_of_its_published_configuration(name):
    model, config = MODELS[name], published(CONFIGS, name)["inputs"]
    shape = (model.layers, model.query_heads, model.kv_heads, model.head_dim, model.hidden, model.ffn, model.vocab)
    assert shape == tuple(
        config[key] for key in ("layers", "q_heads", "kv_heads", "head_dim", "hidden", "ffn", "vocab")
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_models_kv_bytes_per_token_are_the_published_ones(name):
    model = MODELS[name]
    assert model.kv_bytes_per_token == published(CONFIGS, name)["output"] * ureg.byte / ureg.token
    assert model.kv_bytes_per_token.magnitude == 2 * model.layers * model.kv_heads * model.head_dim * 2


@pytest.mark.parametrize("name", MODELS)
def test_a_models_parameters_are_what_its_shape_adds_up_to(name):
    model = MODELS[name]
    query, kv = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 2 * model.hidden * (query + kv)
    if name == "OPT-13B":  # plain feed-forward, biases everywhere, LayerNorm, learned positions, tied embeddings
        layer = attention + 2 * model.hidden * model.ffn + (4 + 1 + 4) * model.hidden + model.ffn
        count = model.layers * layer + (model.vocab + 2050 + 2) * model.hidden
    else:  # gated feed-forward, RMSNorm, untied embeddings
        biases = query + 2 * kv if name.startswith("Qwen") else 0
        layer = attention + biases + 3 * model.hidden * model.ffn + 2 * model.hidden
        count = model.layers * layer + (2 * model.vocab + 1) * model.hidden
    assert model.parameters == count
    assert PARAMETERS.get(PUBLISHED_NAME.get(name, name), count) == count


@pytest.mark.parametrize("name", ["Llama-2-70B", "Llama-3-8B", "Llama-3-70B", "Mistral-7B", "Qwen2.5-7B"])
def test_a_model_with_grouped_query_attention_caches_only_its_kv_heads(name):
    model = MODELS[name]
    shared_by = model.query_heads // model.kv_heads
    assert shared_by == {"Llama-2-70B": 8, "Llama-3-70B": 8, "Qwen2.5-7B": 7}.get(name, 4)
    per_query_head = calc_kv_bytes_per_token(model.layers, model.query_heads, model.head_dim)
    assert per_query_head == shared_by * model.kv_bytes_per_token


@pytest.mark.parametrize("name", ["OPT-13B", "Llama-2-7B", "Llama-2-13B"])
def test_a_model_without_grouped_query_attention_caches_every_head(name):
    assert MODELS[name].kv_heads == MODELS[name].query_heads


@pytest.mark.parametrize("name", MODELS)
def test_the_name_of_a_model_says_its_billions_of_parameters(name):
    billions = float(name.rsplit("-", 1)[1].removesuffix("B"))
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.1)
    assert MODELS[name].weight_bytes.m_as("GB") == pytest.approx(2 * MODELS[name].parameters / 1e9)
    assert MODELS[name].flops_per_token == 2 * MODELS[name].parameters


@pytest.mark.parametrize(
    ("name", "flops_per_byte"), [("A100-40", 200.6), ("A100-80", 153.0), ("H100", 295.2), ("H200", 206.0)]
)
def test_a_gpus_knee_is_its_arithmetic_over_its_bandwidth(name, flops_per_byte):
    assert round(GPUS[name].flops_per_byte, 1) == flops_per_byte


def test_the_datasheets_agree_with_the_rounded_table_of_the_scaling_book():
    (table,) = (fact["output"] for fact in FACTS if fact["id"] == "F176")
    for name, (flops, bandwidth) in zip(("A100-80", "H100", "H200"), table, strict=False):
        assert GPUS[name].flops_per_second.m_as("flop/s") == pytest.approx(flops, rel=0.01)
        assert GPUS[name].bandwidth.m_as("byte/s") == pytest.approx(bandwidth, rel=0.02)


def test_prices_are_those_of_splitwise_table_1_by_the_gpu():
    (machine,) = (fact["output"] for fact in FACTS if fact["id"] == "F112")
    assert [8 * GPUS[name].price.m_as("USD/hour") for name in ("A100-80", "H100")] == pytest.approx(machine)


@pytest.mark.parametrize(("name", "batch"), [("H100", 151.9), ("A100-80", 78.7)])
def test_the_break_even_batch_of_speculation_by_gpu(name, batch):
    assert round(calc_speculative_break_even_batch(0.7, 4, 0.05, GPUS[name].flops_per_byte), 1) == batch


@pytest.mark.parametrize("fact", [*MODELS.values(), *GPUS.values()], ids=lambda fact: fact.name)
def test_every_fact_names_its_sources(fact):
    sources = [value for field, value in vars(fact).items() if field.endswith("source")]
    assert len(sources) == 2
    assert all(len(source) > 20 for source in sources)


def test_a_price_times_a_time_is_money():
    assert (GPUS["H100"].price * (90 * ureg.minute)).to("USD").magnitude == pytest.approx(7.125)


@pytest.mark.parametrize(("table", "known"), [(MODELS, "Llama-3-8B"), (GPUS, "H100")])
def test_an_unknown_name_is_answered_with_the_known_ones(table, known):
    with pytest.raises(KeyError, match=f"no 'B9000' here; there are: .*{known}"):
        table["B9000"]
