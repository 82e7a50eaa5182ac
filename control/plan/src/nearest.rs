//! Requests that no layout meets: the field, its value, and the nearest that would work.

use crate::layout::Candidate;
use crate::request::{PlanRequest, Targets};
use crate::search::{SearchOutcome, search};

/// Most GPUs of a request.
const GPUS_MAX: u32 = 4_096;
/// Largest factor on both targets that is looked at for the nearest that a layout meets, and the
/// searches for it, each of which halves what is not known.
const TARGET_FACTOR_MAX: f64 = 16.0;
const TARGET_STEPS: u32 = 10;

/// Why no layout is left, and the nearest that would work.
pub(crate) fn nothing_fits(request: &PlanRequest, found: &SearchOutcome) -> String {
    let (targets, reach) = (&request.targets, &found.reach);
    if reach.gpus_min.is_none() {
        return too_few_gpus(request);
    }
    let margin = 1.0 + targets.margin;
    let mut faults = Vec::new();
    for (name, target_s, reached_s) in
        [("ttft_ms", targets.ttft_s, reach.ttft_s), ("itl_ms", targets.itl_s, reach.itl_s)]
    {
        let nearest = reached_s * margin * 1e3;
        if reached_s * margin > target_s {
            faults.push(format!(
                "{name}: {:.1} is met by no layout; the nearest is {nearest:.1}, with the margin of {:.0} %",
                target_s * 1e3,
                targets.margin * 1e2
            ));
        }
    }
    match (faults.is_empty(), request.traffic.rate) {
        (false, _) => faults.join("\n"),
        (true, Some(rate)) => too_high_a_rate(request, rate),
        (true, None) => targets_apart(request),
    }
}

/// The model does not fit the GPUs that there are.
fn too_few_gpus(request: &PlanRequest) -> String {
    let more = search(&PlanRequest { gpus: GPUS_MAX, ..request.clone() });
    let nearest = match more.reach.gpus_min {
        Some(least) => format!("the nearest is {least}"),
        None => "no number of them does; a GPU with more memory may".to_owned(),
    };
    format!(
        "gpus: {} of {} do not hold the model's {:.0} GB of weights and the KV of one request; {nearest}",
        request.gpus,
        request.gpu.name,
        request.model.weight_bytes() / 1e9
    )
}

/// Each target is met by a layout, but the GPUs do not suffice for the rate.
fn too_high_a_rate(request: &PlanRequest, rate: f64) -> String {
    let most = search(&unhurried(request)).candidates.first().map(|best| best.estimate.rate);
    match most {
        Some(most) => {
            let gpus = request.gpus;
            format!(
                "rate: {rate} needs more than {gpus} GPUs; the nearest is {most:.2} by the closed form"
            )
        }
        None => targets_apart(&unhurried(request)),
    }
}

fn unhurried(request: &PlanRequest) -> PlanRequest {
    let mut request = request.clone();
    request.traffic.rate = None;
    request
}

/// Each target is met by a layout, and both by none.
fn targets_apart(request: &PlanRequest) -> String {
    let targets = request.targets;
    let at = |factor: f64| Targets {
        ttft_s: targets.ttft_s * factor,
        itl_s: targets.itl_s * factor,
        ..targets
    };
    let meets = |factor: f64| {
        !search(&PlanRequest { targets: at(factor), ..request.clone() }).candidates.is_empty()
    };
    let (mut low, mut high) = (1.0, TARGET_FACTOR_MAX);
    let mut nearest = "none up to 16 times as long is".to_owned();
    if meets(high) {
        for _ in 0..TARGET_STEPS {
            let middle = f64::midpoint(low, high);
            if meets(middle) { high = middle } else { low = middle }
        }
        let Targets { ttft_s, itl_s, .. } = at(high);
        nearest = format!("the nearest are {:.1} and {:.1}", ttft_s * 1e3, itl_s * 1e3);
    }
    format!(
        "ttft_ms and itl_ms: {:.1} and {:.1} are met by no layout together; {nearest}",
        targets.ttft_s * 1e3,
        targets.itl_s * 1e3
    )
}

/// Why no layout held the targets in the replay.
pub(crate) fn nothing_holds(request: &PlanRequest, nearest: &Candidate) -> String {
    format!(
        "attainment_percent: in the replay no layout has {:.0} % of requests within both targets; the \
         nearest by the closed form is {} with {:.2} requests per second",
        request.targets.attainment * 1e2,
        nearest.layout.describe(),
        nearest.estimate.rate
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{DEEPSEEK, QWEN_32B};
    use crate::search::tests::request;

    /// The number after the last such words.
    fn number(text: &str, words: &str) -> f64 {
        let rest = text.rsplit_once(words).expect(text).1.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.').parse().expect(text)
    }

    fn told(request: &PlanRequest) -> String {
        let found = search(request);
        assert!(found.candidates.is_empty(), "{}", found.candidates.len());
        nothing_fits(request, &found)
    }

    #[test]
    fn too_few_gpus_are_told_with_the_fewest_that_hold_the_model() {
        let mut request = request(DEEPSEEK, "h100-sxm", 4);
        let told = told(&request);
        assert!(told.starts_with("gpus: 4 of h100-sxm do not hold"), "{told}");
        request.gpus = number(&told, "the nearest is") as u32;
        assert!(search(&request).reach.gpus_min.is_some(), "{told}");
        request.gpus -= 1;
        assert_eq!(search(&request).reach.gpus_min, None, "{told}");
    }

    #[test]
    fn a_model_that_no_number_of_gpus_holds_is_told() {
        let told = told(&request(DEEPSEEK, "l4", 8));
        assert!(told.contains("no number of them does"), "{told}");
    }

    #[test]
    fn a_rate_that_is_too_high_is_told_with_one_that_is_not() {
        let mut request = request(QWEN_32B, "h100-sxm", 4);
        request.traffic.rate = Some(1_000.0);
        let told = told(&request);
        assert!(told.starts_with("rate: 1000 needs more than 4 GPUs"), "{told}");
        request.traffic.rate = Some(number(&told, "the nearest is") - 0.01);
        assert!(!search(&request).candidates.is_empty(), "{told}");
    }

    #[test]
    fn a_target_that_nothing_meets_is_told_with_the_nearest() {
        let mut request = request(QWEN_32B, "h100-sxm", 8);
        request.targets.itl_s = 0.001;
        let told = told(&request);
        assert!(told.starts_with("itl_ms: 1.0 is met by no layout"), "{told}");
        request.targets.itl_s = (number(&told, "the nearest is") + 0.1) / 1e3;
        assert!(!search(&request).candidates.is_empty(), "{told}");
    }

    /// Each target alone is met, and KV that moves between workers leaves no time for both.
    #[test]
    fn targets_that_contradict_each_other_are_told_with_the_nearest_pair() {
        let mut request = request(QWEN_32B, "h100-sxm", 16);
        request.forms.aggregated = false;
        let (reach, margin) = (search(&request).reach, 1.0 + request.targets.margin);
        request.targets.ttft_s = reach.ttft_s * margin;
        request.targets.itl_s = reach.itl_s * margin;
        let told = told(&request);
        assert!(told.starts_with("ttft_ms and itl_ms: "), "{told}");
        request.targets.ttft_s = (number(&told, "the nearest are") + 0.1) / 1e3;
        request.targets.itl_s = (number(&told, " and ") + 0.1) / 1e3;
        assert!(!search(&request).candidates.is_empty(), "{told}");
    }
}
