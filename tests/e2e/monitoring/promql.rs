//! The query engine of Prometheus, as a program.

use serde_json::{Value, json};
use stator_tests::tooling::installed;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program.
pub(super) struct PromQl(PathBuf);

/// Metrics page of a process.
#[derive(Clone)]
pub(super) struct ScrapedPage {
    pub(super) job: &'static str,
    /// Time of the scrape, seconds.
    pub(super) at_s: f64,
    pub(super) text: String,
}

/// Result of a query.
pub(super) struct QueryAnswer {
    /// Metrics that the query names.
    pub(super) metrics: Vec<String>,
    /// Its series, as the engine writes them.
    pub(super) series: Vec<Value>,
}

impl PromQl {
    /// `None`, and said so, where there is none.
    pub(super) fn installed() -> Option<Self> {
        Some(Self(installed("STATOR_TEST_CHARTS", "Prometheus' query engine")?.join("promql")))
    }

    /// Parses a file of rules.
    pub(super) fn check(&self, file: &Path) {
        let output = Command::new(&self.0).arg("check").arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Evaluates queries over pages at a time; each must be understood.
    pub(super) fn evaluate(
        &self,
        pages: &[ScrapedPage],
        at_s: f64,
        queries: &[String],
    ) -> Vec<QueryAnswer> {
        let page = |page: &ScrapedPage| {
            let labels = json!({ "job": page.job, "instance": format!("{}:0", page.job) });
            json!({ "labels": labels, "at_s": page.at_s, "text": page.text })
        };
        let pages: Vec<_> = pages.iter().map(page).collect();
        let request = json!({ "pages": pages, "at_s": at_s, "queries": queries });
        let mut command = Command::new(&self.0);
        command.arg("eval").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        let written = std::thread::spawn(move || stdin.write_all(request.to_string().as_bytes()));
        let output = process.wait_with_output().unwrap();
        written.join().unwrap().unwrap();
        let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answers.len(), queries.len());
        let read = |(answer, query): (&Value, &String)| {
            assert_eq!(answer["error"], Value::Null, "{query}");
            let metrics = answer["metrics"].as_array().unwrap();
            let metrics = metrics.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            QueryAnswer { metrics, series: answer["series"].as_array().unwrap().clone() }
        };
        answers.iter().zip(queries).map(read).collect()
    }
}
