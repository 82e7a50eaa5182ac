//! The KV cache in the server's metrics page.
//!
//! Source: TensorRT-LLM's metrics collector around 1.2. The page exists with `return_perf_metrics`,
//! and has these gauges with `enable_iter_perf_stats`; versions differ in whether the gauges exist
//! before the first step.

/// Tokens per block.
const BLOCK_SIZE: &str = "trtllm_kv_cache_tokens_per_block";
/// Blocks on the device.
const TOTAL_BLOCKS: &str = "trtllm_kv_cache_max_blocks";

/// Tokens per block and number of blocks, each where the page has it.
pub(super) fn cache(page: &str) -> (Option<u32>, Option<u32>) {
    (gauge(page, BLOCK_SIZE), gauge(page, TOTAL_BLOCKS))
}

/// First value under a name, whatever its labels, if it is a positive whole number.
fn gauge(page: &str, name: &str) -> Option<u32> {
    page.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        let value: f64 = value.split_whitespace().next()?.parse().ok()?;
        let count = value as u32;
        (count > 0 && f64::from(count) == value).then_some(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_whatever_their_labels_and_only_where_they_are_counts() {
        let page = include_str!("../../fixtures/trtllm-1.2-by-hand/prometheus-metrics.txt");
        assert_eq!(cache(page), (Some(32), Some(4096)));
        for page in
            ["", "trtllm_kv_cache_tokens_per_block_more 7\n", "# trtllm_kv_cache_max_blocks 7"]
        {
            assert_eq!(cache(page), (None, None), "{page}");
        }
        let check = |value: &str| gauge(&format!("n{value}\n"), "n");
        for (value, count) in [
            (" 8", Some(8)),
            (" 8.0 1795175534", Some(8)),
            (r#"{a="x} 9"} 8.0"#, Some(8)),
            (" 0", None),
            (" 8.5", None),
            (" -1", None),
            (" NaN", None),
            (" 5e9", None),
            ("{a", None),
            (" ", None),
        ] {
            assert_eq!(check(value), count, "{value}");
        }
    }
}
