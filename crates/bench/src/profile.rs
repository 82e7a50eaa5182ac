//! Profile of an engine: times of its steps over a grid of prompt lengths and batches.
//!
//! A prompt that comes alone takes one step for each of its chunks, so its first token tells their
//! time. Sequences that decode together get one token in each step, so the tokens between the last
//! start and the first end tell the step's time. No prompt has a prefix of another.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use stator_report::write_json;
use stator_runtime::Shutdown;
use stator_timing::{DecodeTime, EngineProfile, PrefillTime};
use tokio::time::Instant;

use crate::args::{BenchArgs, LoadArgs, ProfileArgs};
use crate::client::body::{BodyWriter, RequestInput};
use crate::client::{LoadClient, MeasuredReply};
use crate::seed::{Purpose, Seed};
use crate::workload::{Content, content};

/// Measures a profile and writes it. Ctrl-C ends it without a file.
///
/// # Errors
///
/// When the endpoint does not answer as asked, the grid is too small, or the file cannot be written.
pub async fn run(args: &BenchArgs, file: &Path) -> Result<()> {
    let shutdown = Shutdown::on_signal().context("signal handlers")?;
    let profile = tokio::select! {
        profile = measure(&args.load, &args.profile) => profile?,
        () = shutdown.wait() => bail!("ended before the profile was whole"),
    };
    print!("{}", summary(&profile));
    write_json(file, &profile)
}

/// Sends requests of made-up prompts.
struct Prober {
    client: LoadClient,
    bodies: BodyWriter,
    content: Content,
    seed: u64,
    /// Number of the next prompt.
    next: u64,
}

/// Measures the whole grid.
///
/// # Errors
///
/// When a request fails, or the grid is too small for a roofline.
pub async fn measure(load: &LoadArgs, args: &ProfileArgs) -> Result<EngineProfile> {
    let client = LoadClient::new(&load.target)?;
    let model = match &load.target.model {
        Some(model) => model.clone(),
        None => client.first_model().await?,
    };
    let bodies = BodyWriter::new(&load.target, &model);
    let content = content(load)?;
    let mut prober = Prober { client, bodies, content, seed: load.pace.seed, next: 0 };
    // The first request of an engine may compile, allocate and connect.
    for length in &args.profile_prompts {
        prober.one(*length, 2).await?;
    }
    let mut prefill = Vec::new();
    for length in &args.profile_prompts {
        prefill.push(prober.prefill(*length, args.profile_repeats).await?);
    }
    let mut decode = Vec::new();
    for length in &args.profile_prompts {
        for batch in &args.profile_batches {
            decode.push(prober.decode(*length, *batch, args.profile_tokens).await?);
        }
    }
    let (gpus, step) = (args.profile_gpus, args.profile_step_tokens);
    let profile = EngineProfile::fit(model, gpus, step, prefill, decode);
    profile.context("profile-prompts, profile-batches")
}

impl Prober {
    /// The body of a request with a prompt that no other request begins with.
    fn body(&mut self, length: u32, tokens: u32) -> bytes::Bytes {
        let mut prompt = self.content.empty(length as usize);
        let seed = Seed::of(self.seed, Purpose::Request, self.next);
        self.next += 1;
        self.content.extend(&mut prompt, length as usize, seed);
        self.bodies.write(RequestInput::Prompt(&prompt), tokens)
    }

    async fn one(&mut self, length: u32, tokens: u32) -> Result<MeasuredReply> {
        let body = self.body(length, tokens);
        let reply = self.client.send(body, false).await;
        reply.with_context(|| format!("a prompt of {length} tokens"))
    }

    async fn prefill(&mut self, length: u32, repeats: u32) -> Result<PrefillTime> {
        let mut times = Vec::new();
        let mut tokens = f64::from(length);
        for _ in 0..repeats {
            let reply = self.one(length, 2).await?;
            let ttft = reply.ttft.context("an answer without a first token")?;
            times.push(ttft.as_secs_f64());
            tokens = prompt_tokens(&reply, length);
        }
        times.sort_by(f64::total_cmp);
        Ok(PrefillTime { tokens, seconds: times[times.len() / 2] })
    }

    async fn decode(&mut self, length: u32, batch: u32, tokens: u32) -> Result<DecodeTime> {
        let bodies: Vec<_> = (0..batch).map(|_| self.body(length, tokens)).collect();
        let start = Instant::now();
        let client = &self.client;
        let replies = try_join_all(bodies.into_iter().map(|body| async move {
            let sent = start.elapsed();
            client.send(body, false).await.map(|reply| (sent, reply))
        }));
        let replies =
            replies.await.with_context(|| format!("{batch} prompts of {length} tokens"))?;
        let answers: Vec<AnswerTimes> =
            replies.iter().map(|(sent, reply)| AnswerTimes::of(*sent, reply)).collect();
        let (seconds, place) = step(&answers).with_context(|| {
            format!(
                "profile-tokens: {batch} answers to prompts of {length} tokens were hardly under way \
                 at once; {tokens} is too few, or the engine takes fewer sequences"
            )
        })?;
        let prompt = prompt_tokens(&replies[0].1, length);
        Ok(DecodeTime { sequences: f64::from(batch), context: prompt + place, seconds })
    }
}

/// Tokens of a prompt: the server's count, or those that were made.
fn prompt_tokens(reply: &MeasuredReply, length: u32) -> f64 {
    reply.usage.map_or(f64::from(length), |usage| usage.prompt_tokens as f64)
}

/// Times at which the pieces of an answer came.
struct AnswerTimes {
    pieces: Vec<Duration>,
    /// Tokens of a piece: servers put several into one when they are in a hurry.
    piece_tokens: f64,
}

impl AnswerTimes {
    fn of(sent: Duration, reply: &MeasuredReply) -> Self {
        let mut at = sent + reply.ttft.unwrap_or_default();
        let first = reply.ttft.map(|_| at);
        let later = reply.gaps.iter().map(|gap| {
            at += *gap;
            at
        });
        Self {
            pieces: first.into_iter().chain(later).collect(),
            piece_tokens: reply.output_tokens() as f64 / reply.chunks.max(1) as f64,
        }
    }
}

/// Mean time of the steps in which all answers were under way, seconds, and the mean place of their
/// tokens in the answers; none if there were hardly any.
fn step(answers: &[AnswerTimes]) -> Option<(f64, f64)> {
    let begin = answers.iter().map(|answer| answer.pieces.first().copied()).max()??;
    let end = answers.iter().map(|answer| answer.pieces.last().copied()).min()??;
    let (mut steps, mut seconds, mut places) = (0.0, 0.0, 0.0);
    for AnswerTimes { pieces, piece_tokens } in answers {
        let from = pieces.partition_point(|at| *at < begin);
        let to = pieces.partition_point(|at| *at <= end);
        if to < from + 4 {
            return None;
        }
        // The first piece after the begin may have waited for another's prompt.
        let (from, to) = (from + 1, to - 1);
        let tokens = (to - from) as f64 * piece_tokens;
        steps += tokens;
        seconds += (pieces[to] - pieces[from]).as_secs_f64();
        places += (from + to) as f64 / 2.0 * piece_tokens * tokens;
    }
    Some((seconds / steps, places / steps))
}

fn summary(profile: &EngineProfile) -> String {
    let timing = &profile.timing;
    format!(
        "{} on {} GPUs: {:.3} ms a step, {:.2} us a token, {:.3} ns a pair of prompt tokens, {:.2} ns a \
         token of KV; {:.3} ms a request outside of steps\n{} prompts and {} batches; the roofline is \
         {:.1} % off on average, {:.1} % at most\n",
        profile.model,
        profile.gpus,
        timing.step_s * 1e3,
        timing.token_s * 1e6,
        timing.prefill_pair_s * 1e9,
        timing.decode_kv_token_s * 1e9,
        profile.overhead_s * 1e3,
        profile.prefill.len(),
        profile.decode.len(),
        profile.mean_error * 1e2,
        profile.max_error * 1e2,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(from: u64, gap: u64, count: u64) -> Vec<Duration> {
        (0..count).map(|at| Duration::from_millis(from + gap * at)).collect()
    }

    fn answer(pieces: Vec<Duration>) -> AnswerTimes {
        AnswerTimes { pieces, piece_tokens: 1.0 }
    }

    #[test]
    fn steps_are_timed_where_all_answers_are_under_way() {
        // The second begins at 100 ms; until then the first is slow, and after 195 ms it is alone.
        let first = answer([times(0, 50, 2), times(100, 5, 20)].concat());
        let (seconds, place) = step(&[first, answer(times(100, 5, 40))]).expect("they overlap");
        assert!((seconds - 0.005).abs() < 1e-9, "{seconds}");
        assert!((place - 10.5).abs() < 1.1, "{place}");
        let two = AnswerTimes { pieces: times(0, 10, 20), piece_tokens: 2.0 };
        let (seconds, _) = step(&[two]).expect("it overlaps with itself");
        assert!((seconds - 0.005).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn answers_that_hardly_overlap_say_nothing() {
        let early = || answer(times(0, 5, 10));
        assert_eq!(step(&[early(), answer(times(40, 5, 10))]), None);
        assert_eq!(step(&[early(), answer(Vec::new())]), None);
    }
}
