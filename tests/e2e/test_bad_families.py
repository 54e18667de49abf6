"""Model folders whose configuration or tensors no supported model has: each is refused at import, with the key or tensor and what is supported."""
import json
import unittest

import numpy as np

import support
from folder_case import FolderCase

ATTENTION = "model.layers.1.self_attn."


class Keys(FolderCase):

    def expect(self, fixture, changes, *parts):
        folder = self.dir / "hf"
        if not folder.exists():
            self.hf(fixture=fixture)
        config = json.loads((support.FIXTURES / fixture / "hf" / "config.json").read_text())
        config.update(changes)
        (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
        with self.subTest(fixture=fixture, **{key: str(value) for key, value in changes.items()}):
            self.refused(folder, "config.json", *parts)

    def test_llama(self):
        for changes, parts in [
                ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
                ({"hidden_act": 3}, ("hidden_act", "3")),
                ({"attention_dropout": 0.1}, ("attention_dropout", "0.1")),
                ({"attention_dropout": "none"}, ("attention_dropout", "none")),
                ({"num_local_experts": 8}, ("num_local_experts", "experts")),
                ({"num_experts": 60}, ("num_experts", "experts")),
                ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config", "dequantized")),
                ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
                ({"sliding_window": 16}, ("sliding_window", "LlamaForCausalLM")),
                ({"layer_types": ["full_attention"] * 2}, ("layer_types", "3 names")),
                ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, ("layer_types", "linear_attention")),
                ({"architectures": ["LlamaForSequenceClassification"]}, ("LlamaForSequenceClassification", "LlamaForCausalLM")),
                ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, ("GPT2LMHeadModel", "Qwen3ForCausalLM")),
                ({"architectures": ["MistralForCausalLM"]}, ("MistralForCausalLM", "llama", "disagree")),
                ({"architectures": "absent", "model_type": "absent"}, ("architectures", "model_type")),
                ({"num_attention_heads": 0}, ("num_attention_heads", "at least 1")),
                ({"num_key_value_heads": 3}, ("num_attention_heads = 4", "num_key_value_heads = 3")),
                ({"head_dim": 7}, ("head_dim = 7", "odd")),
                ({"hidden_size": 50, "head_dim": "absent"}, ("hidden_size = 50", "num_attention_heads = 4")),
                ({"num_hidden_layers": 2.5}, ("num_hidden_layers", "2.5")),
                ({"vocab_size": "absent"}, ("vocab_size", "missing")),
                ({"rms_norm_eps": -1e-5}, ("rms_norm_eps", "below 0")),
                ({"tie_word_embeddings": "false"}, ("tie_word_embeddings", "true or false"))]:
            self.expect("llama2", changes, *parts)

    def test_rotary(self):
        for changes, parts in [
                ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, ("longrope", "default, linear, llama3, yarn")),
                ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, ("dynamic", "llama3")),
                ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ("rope_type", "given twice", "linear", "default")),
                ({"rope_theta": 500000.0}, ("rope_theta", "given twice", "500000")),
                ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ("linear", "factor")),
                ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}, ("llama3", "freq_factor")),
                ({"rope_parameters": {"rope_type": "yarn", "rope_theta": -1.0, "factor": 8.0}}, ("rope_theta", "-1")),
                ({"rope_parameters": [1e4]}, ("rope_parameters", "object")),
                ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, ("rope_parameters.sliding_attention",))]:
            self.expect("llama2", changes, *parts)

    def test_mistral_and_qwen(self):
        for fixture, changes, parts in [
                ("mistral_sliding", {"sliding_window": -4}, ("sliding_window", "-4")),
                ("mistral_sliding", {"sliding_window": "wide"}, ("sliding_window", "wide")),
                ("mistral_sliding", {"layer_types": ["full_attention", "sliding_attention"]}, ("layer_types", "MistralForCausalLM")),
                ("mistral_sliding", {"attention_bias": True}, ("attention_bias", "MistralForCausalLM"))]:
            self.expect(fixture, changes, *parts)
        self.setUp()
        for changes, parts in [
                ({"use_sliding_window": False}, ("layer_types", "use_sliding_window is not true")),
                ({"use_sliding_window": 1}, ("use_sliding_window", "true or false")),
                ({"sliding_window": None}, ("layer_types", "sliding_window is null")),
                ({"sliding_window": 0}, ("sliding_window", "at least 1")),
                ({"layer_types": ["sliding_attention"]}, ("layer_types", "3 names")),
                ({"layer_types": "absent", "max_window_layers": -1}, ("max_window_layers", "-1")),
                ({"mlp_bias": True}, ("mlp_bias", "Qwen3ForCausalLM"))]:
            self.expect("qwen3_layer_types", changes, *parts)


class Tensors(FolderCase):
    def expect(self, fixture, change, *parts):
        folder = self.hf(fixture=fixture)
        tensors = support.read_folder(folder)
        change(tensors)
        support.write_safetensors(folder / "model.safetensors", tensors)
        self.refused(folder, *parts)
        self.setUp()

    def test_biases(self):
        bias = ATTENTION + "k_proj.bias"
        for fixture, shape in (("llama_biases", "[12]"), ("qwen2", "[16]")):
            self.expect(fixture, lambda t: t.pop(bias), bias, shape, "missing")
        self.expect("llama_biases", lambda t: t.pop("model.layers.0.mlp.down_proj.bias"), "model.layers.0.mlp.down_proj.bias", "[24]")
        self.expect("llama_biases", lambda t: t.pop(ATTENTION + "o_proj.bias"), ATTENTION + "o_proj.bias", "[24]")
        self.expect("llama2", lambda t: t.update({bias: ("F32", np.zeros(48, "f4"))}), bias, "LlamaForCausalLM")
        output = ATTENTION + "o_proj.bias"
        self.expect("qwen2", lambda t: t.update({output: ("F32", np.zeros(48, "f4"))}), output, "Qwen2ForCausalLM")
        self.expect("qwen2", lambda t: t.update({bias: ("F32", np.zeros(48, "f4"))}), bias, "[48]", "[16]")

    def test_head_norms(self):
        norm = ATTENTION + "q_norm.weight"
        self.expect("qwen3", lambda t: t.pop(norm), norm, "[24]", "missing")
        self.expect("qwen3", lambda t: t.update({norm: ("F32", np.zeros(96, "f4"))}), norm, "[96]", "[24]")
        self.expect("llama2", lambda t: t.update({norm: ("F32", np.zeros(12, "f4"))}), norm, "LlamaForCausalLM")

    def test_heads(self):
        key = ATTENTION + "k_proj.weight"
        self.expect("qwen2", lambda t: t.update({key: ("F32", np.zeros((48, 48), "f4"))}), key, "[48, 48]", "[16, 48]")

    def test_a_config_of_a_deeper_or_shallower_model(self):
        for layers, part in ((4, "model.layers.3."), (2, "model.layers.2.")):
            folder = self.hf()
            self.edit_config(folder, num_hidden_layers=layers)
            self.refused(folder, part)
            self.setUp()

    def test_a_head_that_is_tied_or_not(self):
        folder = self.hf(fixture="llama_linear_old")
        self.edit_config(folder, tie_word_embeddings=False)
        self.refused(folder, "lm_head.weight", "missing")


if __name__ == "__main__":
    unittest.main()
