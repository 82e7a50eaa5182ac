//! Metrics pages of proxies and pickers, as far as a planner reads them.

use super::histogram::Buckets;

/// Counts of one page: of one process, or of several that Prometheus shows together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PageCounts {
    /// Requests that came.
    pub(super) requests: f64,
    /// Requests that were answered.
    pub(super) answers: f64,
    /// Requests that wait for a worker.
    pub(super) waiting: f64,
    pub(super) prompt_tokens: f64,
    pub(super) cached_tokens: f64,
    pub(super) output_tokens: f64,
    /// Times to the first token, and mean times between tokens, seconds.
    pub(super) ttft: Buckets,
    pub(super) itl: Buckets,
}

impl PageCounts {
    /// Reads a page; values of one name are added up whatever their labels are.
    ///
    /// # Errors
    ///
    /// The page is neither a proxy's nor a picker's.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut counts, mut known) = (Self::default(), false);
        let ours =
            |line: &&str| ["stator_proxy_", "llm_d_epp_"].iter().any(|of| line.starts_with(of));
        for line in text.lines().filter(ours) {
            let Some((name, labels, value)) = sample(line) else {
                return Err(format!("malformed line {line:?}"));
            };
            known |= counts.add(name, labels, value);
        }
        known.then_some(counts).ok_or_else(|| "no metrics of a proxy or picker".to_owned())
    }

    /// Takes a value in; false if its name is of no interest.
    fn add(&mut self, name: &str, labels: &str, value: f64) -> bool {
        match name {
            // Other counts of a proxy include readers of its metrics.
            "stator_proxy_placement_duration_seconds_count" => self.requests += value,
            "stator_proxy_time_to_first_token_seconds_count" => self.answers += value,
            // Prompts that wait came, too, and are counted once more when they are placed.
            "stator_proxy_requests_waiting" => {
                self.waiting += value;
                self.requests += value;
            }
            "stator_proxy_prompt_tokens_total" => self.prompt_tokens += value,
            "stator_proxy_cached_prompt_tokens_total" => self.cached_tokens += value,
            "stator_proxy_completion_tokens_total" => self.output_tokens += value,
            // A picker counts requests when they come.
            "llm_d_epp_request_total" => self.requests += value,
            "llm_d_epp_request_output_tokens_count" => self.answers += value,
            "llm_d_epp_flow_control_queue_size" => self.waiting += value,
            "llm_d_epp_request_input_tokens_sum" => self.prompt_tokens += value,
            "llm_d_epp_request_cached_tokens_sum" => self.cached_tokens += value,
            "llm_d_epp_request_output_tokens_sum" => self.output_tokens += value,
            "stator_proxy_time_to_first_token_seconds_bucket"
            | "llm_d_epp_request_ttft_seconds_bucket" => {
                bound(labels).into_iter().for_each(|bound| self.ttft.add(bound, value));
            }
            "stator_proxy_inter_token_latency_seconds_bucket"
            | "llm_d_epp_request_streaming_tpot_seconds_bucket" => {
                bound(labels).into_iter().for_each(|bound| self.itl.add(bound, value));
            }
            _ => return false,
        }
        true
    }
}

/// Name, labels and value of a line. What follows the value, a time or an example, does not count.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, labels, rest) = match line.find('{') {
        Some(open) => {
            let close = line.find('}')?;
            (&line[..open], line.get(open + 1..close)?, &line[close + 1..])
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, "", rest)
        }
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some((name, labels, value))
}

/// The upper bound among a bucket's labels.
fn bound(labels: &str) -> Option<f64> {
    let quoted = labels.split(',').find_map(|label| label.trim().strip_prefix("le=\""))?;
    // `+Inf` is a number to the parser too.
    quoted.strip_suffix('"')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = r#"# TYPE stator_proxy_requests counter
stator_proxy_requests_total{route="/metrics"} 40
stator_proxy_placement_duration_seconds_count{instance="a"} 40
stator_proxy_placement_duration_seconds_count{instance="b"} 4
stator_proxy_time_to_first_token_seconds_count 42
stator_proxy_requests_waiting 1
stator_proxy_prompt_tokens_total 9000 1700000000
stator_proxy_cached_prompt_tokens_total 1000
stator_proxy_completion_tokens_total 500
stator_proxy_time_to_first_token_seconds_bucket{instance="a",le="0.1"} 30 # {trace_id="x"} 0.05
stator_proxy_time_to_first_token_seconds_bucket{instance="a",le="+Inf"} 40
stator_proxy_time_to_first_token_seconds_bucket{instance="b",le="0.1"} 1
stator_proxy_time_to_first_token_seconds_bucket{instance="b",le="+Inf"} 1
other 5
# EOF
"#;

    #[test]
    fn values_of_one_name_are_added_up() {
        let counts = PageCounts::parse(PAGE).expect("it is a page");
        assert_eq!((counts.requests, counts.answers, counts.waiting), (45.0, 42.0, 1.0));
        assert_eq!((counts.prompt_tokens, counts.cached_tokens), (9_000.0, 1_000.0));
        assert_eq!((counts.ttft.count(), counts.ttft.share_within(0.1)), (41.0, 31.0 / 41.0));
    }

    /// A proxy's page, and what Prometheus 2.42 says at `/federate` after it read that page: untyped, with
    /// labels of its own behind `le`, and a time behind each value.
    #[test]
    fn prometheus_tells_of_a_proxy_what_the_proxy_tells() {
        let proxy = PageCounts::parse(include_str!("fixtures/proxy.txt")).expect("it is a page");
        let told = PageCounts::parse(include_str!("fixtures/federate.txt")).expect("it is a page");
        assert_eq!((told.requests, told.answers, told.output_tokens), (4.0, 4.0, 80.0));
        assert_eq!(told.itl.count(), 4.0);
        assert_eq!(told, proxy);
    }

    #[test]
    fn a_picker_counts_requests_when_they_come() {
        let page = "llm_d_epp_request_total{model_name=\"m\"} 7\n\
                    llm_d_epp_request_output_tokens_sum{model_name=\"m\"} 90\n\
                    llm_d_epp_request_output_tokens_count{model_name=\"m\"} 5\n";
        let counts = PageCounts::parse(page).expect("it is a page");
        assert_eq!((counts.requests, counts.answers, counts.output_tokens), (7.0, 5.0, 90.0));
    }

    #[test]
    fn another_page_is_a_fault() {
        assert!(PageCounts::parse("vllm:num_requests_running 1\n").is_err());
        assert!(PageCounts::parse("stator_proxy_requests_total{ 1\n").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(stator_proxy_[a-z_{}=\"0-9 .]{0,60}\n){0,4}") {
            let _ = PageCounts::parse(&text);
        }
    }
}
