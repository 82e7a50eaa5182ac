//! The program: one trial, one corpus, or the tables of many trials.

use clap::{Parser, Subcommand, ValueEnum};
use stator_index_bench::corpus::Corpus;
use stator_index_bench::dynamo::{Crtc, Positional};
use stator_index_bench::fleet::{self, Fleet};
use stator_index_bench::measure::{
    Values, closed, hashing, lookups, memory, open, snapshot, verify, visible,
};
use stator_index_bench::ours::Ours;
use stator_index_bench::record::{self, Record};
use stator_index_bench::subject::{Restore, Subject};
use stator_index_bench::{alloc, machine, report, trace};
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures KV indexes.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes a corpus.
    Corpus {
        /// A trace in Mooncake's format; made up if there is none.
        #[arg(long)]
        trace: Option<PathBuf>,
        /// Which fleet it is of.
        #[arg(long)]
        fleet: FleetName,
        /// File to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// Runs one trial and adds it to a file.
    Trial(Trial),
    /// Prints the tables of a file of trials.
    Report {
        /// The file.
        file: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum FleetName {
    /// 16-token blocks, 64 workers that never evict.
    Deep,
    /// 128-token blocks, 16 workers with room for 16,384 of them; the trace four times.
    Churn,
}

impl FleetName {
    fn fleet(self) -> Fleet {
        match self {
            Self::Deep => Fleet { workers: 64, block_size: 16, capacity: None, copies: 1 },
            Self::Churn => {
                Fleet { workers: 16, block_size: 128, capacity: Some(16_384), copies: 4 }
            }
        }
    }
}

#[derive(clap::Args)]
struct Trial {
    /// What is measured.
    #[arg(long)]
    index: IndexName,
    /// How.
    #[arg(long)]
    measure: Measure,
    /// File with a corpus.
    #[arg(long)]
    corpus: PathBuf,
    /// Blocks or block operations a second, 0 for as fast as it goes.
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Which repetition it is.
    #[arg(long, default_value_t = 0)]
    repetition: u32,
    /// File that the trial is added to.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum IndexName {
    Stator,
    Crtc,
    Positional,
}

#[derive(Clone, Copy, ValueEnum)]
enum Measure {
    /// Fill at full speed, then look prompts up, quiet.
    Closed,
    /// Fill, then look prompts up beside a writer.
    Loaded,
    /// Replay prompts and events by their times.
    Open,
    /// Send events by their times.
    Visible,
    /// Count bytes.
    Memory,
    /// Restore ten million blocks.
    Snapshot,
    /// Hash prompts.
    Hash,
    /// Compare answers.
    Verify,
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Corpus { trace, fleet, out } => write_corpus(trace.as_deref(), fleet, &out),
        Command::Trial(trial) => match trial.index {
            IndexName::Stator => run::<Ours>(&trial),
            IndexName::Crtc => run::<Crtc>(&trial),
            IndexName::Positional => run::<Positional>(&trial),
        },
        Command::Report { file } => {
            print!("{}", report::tables(&record::read(&file)?));
            Ok(())
        }
    }
}

fn write_corpus(path: Option<&Path>, name: FleetName, out: &Path) -> anyhow::Result<()> {
    let prompts = match path {
        Some(path) => trace::read(path)?,
        None => trace::synthesise(1),
    };
    let corpus = fleet::serve(name.fleet(), &prompts);
    let held: usize = corpus.requests.iter().map(|request| request.held).sum();
    eprintln!(
        "{}: {} requests, {} blocks asked for, {:.1} % of them held, {} stored, {} removed",
        out.display(),
        corpus.requests.len(),
        corpus.local.len(),
        100.0 * held as f64 / corpus.local.len() as f64,
        corpus.changed_blocks() - corpus.removed.len(),
        corpus.removed.len(),
    );
    corpus.write(out)
}

fn run<S: Restore>(trial: &Trial) -> anyhow::Result<()> {
    let load = machine::Load::now();
    let mut values = Values::new();
    let measured = measure::<S>(trial, &mut values);
    let name = trial.measure.to_possible_value().map(|value| value.get_name().to_owned());
    let stem = trial.corpus.file_stem().unwrap_or_default();
    let record = Record {
        index: S::NAME.into(),
        corpus: stem.to_string_lossy().into_owned(),
        measure: name.unwrap_or_default(),
        rate: trial.rate,
        repetition: trial.repetition,
        values,
        others_percent: load.and_then(|load| load.others_percent()),
    };
    record.append(&trial.out)?;
    measured
}

fn measure<S: Restore>(trial: &Trial, values: &mut Values) -> anyhow::Result<()> {
    match trial.measure {
        Measure::Snapshot => snapshot::restore::<S>(values),
        Measure::Hash if S::NAME == Ours::NAME => hashing::ours(values),
        Measure::Hash => hashing::dynamo(values),
        Measure::Memory => {
            alloc::count();
            let corpus = Corpus::read(&trial.corpus)?;
            memory::fill(|| S::new(&corpus), &corpus, values);
        }
        Measure::Verify => {
            let corpus = Corpus::read(&trial.corpus)?;
            let same = verify::same_answers::<S, Crtc>(&corpus, values);
            anyhow::ensure!(same || S::NAME != Ours::NAME, "answers differ: {values:?}");
        }
        _ => timed::<S>(trial, &Corpus::read(&trial.corpus)?, values),
    }
    Ok(())
}

/// The measurements that need a corpus and a clock.
fn timed<S: Subject>(trial: &Trial, corpus: &Corpus, values: &mut Values) {
    let subject = S::new(corpus);
    match trial.measure {
        Measure::Open => open::replay(&subject, corpus, trial.rate, values),
        Measure::Visible => visible::paced(&subject, corpus, trial.rate, values),
        Measure::Loaded => {
            closed::fill(&subject, corpus, &mut Values::new());
            upkeep(&subject, corpus, values);
            lookups::loaded(&subject, corpus, trial.rate, values);
        }
        _ => {
            closed::fill(&subject, corpus, values);
            upkeep(&subject, corpus, values);
            lookups::quiet(&subject, corpus, values);
        }
    }
}

/// Has an index do what it leaves for the background, before lookups are timed.
fn upkeep<S: Subject>(subject: &S, corpus: &Corpus, values: &mut Values) {
    let start = machine::process_cpu();
    subject.maintain();
    let cpu = (machine::process_cpu() - start).as_nanos() as f64;
    values.insert("upkeep CPU, ns/block".into(), cpu / corpus.changed_blocks() as f64);
}
