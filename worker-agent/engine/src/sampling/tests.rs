use proptest::prelude::*;

use super::*;

const EOS: &[u32] = &[0];

fn draw<'a>(sampling: &'a Sampling, tokens: &'a [u32], prompt: usize) -> Draw<'a> {
    Draw { sampling, choice: 0, tokens, prompt, eos_token_ids: EOS, guide: None, forced: None }
}

fn choose(logits: &[f32], sampling: &Sampling, tokens: &[u32], prompt: usize) -> u32 {
    sample(logits, &draw(sampling, tokens, prompt), &mut Scratch::default())
}

/// The obvious way, in f64 and with sorting: logits after the bias and the penalties.
fn slow_logits(logits: &[f32], sampling: &Sampling, tokens: &[u32], prompt: usize) -> Vec<f64> {
    let answer = &tokens[prompt..];
    let value = |(id, &logit): (usize, &f32)| {
        let id = id as u32;
        let ends = EOS.contains(&id) || sampling.stop_token_ids.contains(&id);
        if ends && answer.len() < sampling.min_tokens as usize {
            return f64::NEG_INFINITY;
        }
        let mut logit = f64::from(logit);
        for entry in sampling.logit_bias.iter().filter(|entry| entry.token_id == id) {
            logit += f64::from(entry.bias);
        }
        if tokens.contains(&id) {
            let penalty = f64::from(sampling.repetition_penalty);
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        let count = answer.iter().filter(|token| **token == id).count() as f64;
        logit -= f64::from(sampling.frequency_penalty) * count;
        logit - f64::from(sampling.presence_penalty) * count.min(1.0)
    };
    logits.iter().enumerate().map(value).collect()
}

/// The tokens that may be drawn, with their probabilities.
fn slow_probabilities(logits: &[f64], sampling: &Sampling) -> Vec<(u32, f64)> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let temperature = f64::from(sampling.temperature);
    let weights = logits.iter().map(|logit| ((logit - max) / temperature).exp());
    let mut kept: Vec<(u32, f64)> = (0..).zip(weights).collect();
    kept.retain(|(_, weight)| *weight >= f64::from(sampling.min_p));
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k as usize);
    }
    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    let mut before = 0.0;
    kept.retain(|(_, weight)| {
        let keep = before < f64::from(sampling.top_p) * total;
        before += weight;
        keep
    });
    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    kept.iter().map(|(token, weight)| (*token, weight / total)).collect()
}

fn any_sampling() -> impl Strategy<Value = Sampling> {
    let truncation = (0..8_u32, 0.05..=1.0_f32, 0.0..0.5_f32, any::<[bool; 2]>());
    let penalties = (0.5..2.0_f32, -2.0..2.0_f32, -2.0..2.0_f32);
    let endings = (0..6_u32, prop::collection::vec(0..12_u32, 0..3));
    let entry =
        (0..12_u32, -100.0..100.0_f32).prop_map(|(token_id, bias)| LogitBias { token_id, bias });
    let bias = prop::collection::vec(entry, 0..3);
    (0.1..2.0_f32, truncation, penalties, endings, bias).prop_map(
        |(
            temperature,
            (top_k, top_p, min_p, [all_p, no_min_p]),
            penalties,
            endings,
            logit_bias,
        )| {
            Sampling {
                temperature,
                top_k,
                top_p: if all_p { 1.0 } else { top_p },
                min_p: if no_min_p { 0.0 } else { min_p },
                repetition_penalty: penalties.0,
                presence_penalty: penalties.1,
                frequency_penalty: penalties.2,
                min_tokens: endings.0,
                stop_token_ids: endings.1,
                logit_bias,
                ..Sampling::neutral()
            }
        },
    )
}

fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    // Small steps make ties.
    prop::collection::vec((-12..12_i32).prop_map(|step| step as f32 / 2.0), 12)
}

proptest! {
    /// Greedy takes the lowest of the best tokens of the obvious computation.
    #[test]
    fn greedy_agrees_with_the_obvious_way(
        logits in any_logits(),
        sampling in any_sampling(),
        tokens in prop::collection::vec(0..12_u32, 1..12),
        prompt in any::<prop::sample::Index>(),
    ) {
        let sampling = Sampling { temperature: 0.0, ..sampling };
        let prompt = 1 + prompt.index(tokens.len());
        let slow = slow_logits(&logits, &sampling, &tokens, prompt);
        let got = choose(&logits, &sampling, &tokens, prompt);
        let max = slow.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Rounding may part what is equal in f64, or the other way round.
        prop_assert!(slow[got as usize] >= max - 1e-4, "{got} of {slow:?}");
        let close = slow.iter().filter(|logit| **logit >= max - 1e-4).count();
        let first = slow.iter().position(|logit| *logit == max).unwrap();
        prop_assert!(close > 1 || got as usize == first);
    }

    /// What is drawn, over many seeds, has the probabilities of the obvious computation, and
    /// nothing is drawn that it excludes.
    #[test]
    fn draws_have_the_obvious_probabilities(
        logits in any_logits(),
        sampling in any_sampling(),
        tokens in prop::collection::vec(0..12_u32, 1..12),
        prompt in any::<prop::sample::Index>(),
    ) {
        const DRAWS: u32 = 2000;
        let prompt = 1 + prompt.index(tokens.len());
        // Away from the borders, where rounding decides what is kept.
        let slow = slow_logits(&logits, &sampling, &tokens, prompt);
        let expected = slow_probabilities(&slow, &sampling);
        let near = |top_p: f32, min_p: f32| {
            slow_probabilities(&slow, &Sampling { top_p, min_p, ..sampling.clone() }).len()
        };
        let (top_p, min_p) = (sampling.top_p, sampling.min_p);
        prop_assume!(near(top_p * 0.999, min_p * 1.001) == near(top_p * 1.001, min_p * 0.999));
        let mut counts = [0_u32; 12];
        for seed in 0..DRAWS {
            let sampling = Sampling { seed: seed.into(), ..sampling.clone() };
            counts[choose(&logits, &sampling, &tokens, prompt) as usize] += 1;
        }
        for (token, count) in counts.iter().enumerate() {
            let probability = expected.iter().find(|(id, _)| *id as usize == token);
            let mean = probability.map_or(0.0, |(_, p)| p * f64::from(DRAWS));
            // Five standard deviations, and room for what is drawn hardly ever.
            let allowed = 5.0 * mean.sqrt() + 5.0 * f64::from(mean > 0.0);
            let off = (f64::from(*count) - mean).abs();
            prop_assert!(off <= allowed, "token {token}: {count} draws, expected {mean}");
        }
    }

    /// Logprobs and alternatives are those of a softmax over the raw logits.
    #[test]
    fn logprobs_agree_with_the_obvious_way(
        logits in any_logits(), token in 0..12_u32, alternatives in 0..14_u32,
    ) {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let mut slow: Vec<(u32, f64)> =
            (0..).zip(logits.iter().map(|logit| f64::from(*logit) - sum.ln())).collect();
        let got = logprobs(&logits, token, alternatives);
        prop_assert!((f64::from(got.logprob) - slow[token as usize].1).abs() < 1e-5);
        slow.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        slow.truncate(alternatives as usize);
        prop_assert_eq!(got.top.len(), slow.len());
        for (got, slow) in got.top.iter().zip(&slow) {
            prop_assert_eq!(got.0, slow.0);
            prop_assert!((f64::from(got.1) - slow.1).abs() < 1e-5);
        }
    }
}

#[test]
fn top_p_alone_sorts_as_many_as_it_needs() {
    // 3000 tokens of which the best 1000 or so make up the half: more than are sorted at first.
    let logits: Vec<f32> = (0..3000).map(|i| ((i * 7919) % 3000) as f32 / 3000.0).collect();
    let sampling = Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::neutral() };
    let kept = slow_probabilities(&slow_logits(&logits, &sampling, &[1], 1), &sampling);
    assert!(kept.len() > 256 * 3 && kept.len() < 2000);
    let (mut scratch, draw) = (Scratch::default(), draw(&sampling, &[1], 1));
    sample(&logits, &draw, &mut scratch);
    let expected: Vec<u32> = kept.iter().map(|(token, _)| *token).collect();
    let got: Vec<u32> = scratch.candidates.iter().map(|candidate| candidate.token).collect();
    assert_eq!(got, expected);
}

#[test]
fn the_stream_depends_on_seed_choice_and_position_alone() {
    let mut seen = std::collections::HashSet::new();
    for (seed, choice, position) in
        [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0, 2), (1, 0, 7), (1, 0, 8), (1, 0, 9)]
    {
        let value = random(seed, choice, position);
        assert!((0.0..1.0).contains(&value));
        assert_eq!(value, random(seed, choice, position));
        assert!(seen.insert(value.to_bits()), "{seed} {choice} {position} repeats a number");
    }
}

#[test]
fn broken_logits_do_not_stop_the_engine() {
    let sampled = Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::neutral() };
    let plain = Sampling { temperature: 1.0, ..Sampling::neutral() };
    for sampling in [&Sampling::neutral(), &sampled, &plain] {
        assert_eq!(choose(&[f32::NAN, f32::NAN, 1.0], sampling, &[1], 1), 2);
        assert_eq!(choose(&[f32::NEG_INFINITY; 3], sampling, &[1], 1), 0);
        assert_eq!(choose(&[f32::NAN; 3], sampling, &[1], 1), 0);
    }
}

/// A form over four tokens: the end, `a`, `b` and `c`.
fn guide(regex: &str) -> stator_guide::Guide {
    let tokens = vec![vec![], b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
    let factory = stator_guide::GuideFactory::new(tokens, vec![(0, "<end>".into())], EOS);
    let form = stator_protos::worker::guide::Form::Regex(regex.into());
    factory.expect("a vocabulary").compile(&form).expect("a sound form")
}

#[test]
fn a_form_rules_tokens_out_whatever_the_logits_say() {
    let logits = [9.0, 5.0, 1.0, 7.0];
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, ..Sampling::neutral() };
        let mut guide = guide("b[ac]");
        let mut answer = Vec::new();
        for _ in 0..3 {
            let draw = Draw { guide: Some(&guide), ..draw(&sampling, &answer, 0) };
            let token = sample(&logits, &draw, &mut Scratch::default());
            guide.advance(token);
            answer.push(token);
        }
        assert!(answer == [2, 3, 0] || temperature > 0.0 && answer == [2, 1, 0], "{answer:?}");
    }
}

#[test]
fn a_forced_token_comes_whatever_the_logits_say() {
    let sampling = Sampling::neutral();
    let draw = Draw { forced: Some(2), ..draw(&sampling, &[1], 0) };
    assert_eq!(sample(&[9.0, 9.0, f32::NEG_INFINITY], &draw, &mut Scratch::default()), 2);
}

#[test]
fn a_form_counts_more_than_the_least_length() {
    let sampling = Sampling { temperature: 0.0, min_tokens: 9, ..Sampling::neutral() };
    let mut guide = guide("a");
    guide.advance(1);
    let draw = Draw { guide: Some(&guide), ..draw(&sampling, &[1], 0) };
    assert_eq!(sample(&[0.0, 1.0, 2.0, 3.0], &draw, &mut Scratch::default()), 0);
}
