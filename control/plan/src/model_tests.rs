use super::*;

/// Qwen3 32B, from its published sizes.
pub(crate) const QWEN_32B: &str = r#"{"num_hidden_layers": 64, "hidden_size": 5120,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 25600, "vocab_size": 151936, "tie_word_embeddings": false,
    "max_position_embeddings": 40960, "sliding_window": null, "use_sliding_window": false}"#;

/// DeepSeek V3, from its published sizes.
pub(crate) const DEEPSEEK: &str = r#"{"num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "max_position_embeddings": 163840, "quantization_config": {"quant_method": "fp8"}}"#;

fn billions(shape: &ModelShape) -> f64 {
    (shape.parameters() / 1e8).round() / 10.0
}

#[test]
fn published_sizes_come_out() {
    let qwen = ModelShape::parse(QWEN_32B).expect("a dense model");
    assert_eq!(billions(&qwen), 32.8);
    // 2 × 8 heads × 128 numbers in each of 64 layers.
    assert_eq!(qwen.kv_numbers(1.0), 131_072.0);
    let deepseek = ModelShape::parse(DEEPSEEK).expect("a model with experts");
    assert_eq!(billions(&deepseek), 671.0);
    assert_eq!((deepseek.weights, deepseek.kv_heads), (Precision::Fp8, 1));
    assert_eq!(deepseek.kv_numbers(1.0), 61.0 * 576.0);
}

#[test]
fn a_window_bounds_the_kv_of_its_layers() {
    let text = QWEN_32B
        .replace(
            "\"sliding_window\": null, \"use_sliding_window\": false",
            "\"sliding_window\": 128",
        )
        .replace(
            "\"num_hidden_layers\": 64",
            r#""num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"]"#,
        );
    let shape = ModelShape::parse(&text).expect("a model with a window");
    assert_eq!(shape.full_layers, 1);
    assert_eq!(shape.kv_numbers(1_000.0), (1_000.0 + 128.0) * 2_048.0);
}

#[test]
fn what_is_not_understood_is_named() {
    let check = |from: &str, to: &str, expected: &str| {
        let fault = ModelShape::parse(&QWEN_32B.replace(from, to)).expect_err("a fault");
        assert!(fault.contains(expected), "{fault}");
    };
    check("\"hidden_size\": 5120", "\"hidden_size\": 0", "hidden_size");
    check("\"vocab_size\": 151936,", "", "vocab_size");
    check("\"head_dim\": 128", "\"ssm_state_size\": 16", "ssm_state_size: state-space layers");
    check("\"head_dim\": 128", "\"num_experts\": 8", "num_experts_per_tok");
    check("\"head_dim\": 128", "\"quantization_config\": {\"quant_method\": \"abacus\"}", "abacus");
    assert!(ModelShape::parse("[1]").is_err());
}

#[test]
fn a_missing_file_is_named() {
    let error = ModelShape::read(Path::new("/nowhere/config.json")).expect_err("no file");
    assert!(error.to_string().contains("/nowhere/config.json"), "{error}");
}
