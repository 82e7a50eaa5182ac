//! Clients that ask a Service without pause, so that a test can see what a change costs them.

use crate::bed::{answer, chat};
use serde_json::Value;
use stator_tests::http::Client;
use stator_tests::nodes::PodSpace;
use stator_tests::soon;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tokens of each answer: enough that changes come upon answers under way.
const TOKENS: u32 = 150;
/// Questions, each with one right answer.
const QUESTIONS: usize = 4;

/// Clients at work.
pub(crate) struct Load {
    clients: JoinSet<Vec<String>>,
    stop: watch::Sender<bool>,
    answers: watch::Receiver<usize>,
}

/// Parts that all clients of a load share.
#[derive(Clone)]
struct Exam {
    frontends: watch::Receiver<Vec<SocketAddr>>,
    questions: Arc<Vec<(Value, String)>>,
    stopped: watch::Receiver<bool>,
    answers: Arc<watch::Sender<usize>>,
}

impl Load {
    /// Asks each question once, to have the right answers, and starts this many clients of a Service.
    pub(crate) async fn start(
        space: &PodSpace<'_>,
        service: &str,
        model: &str,
        clients: usize,
    ) -> Self {
        let frontends = space.follow(service).await;
        let client = Client::new(frontends.borrow()[0]);
        let mut questions = Vec::new();
        for number in 0..QUESTIONS {
            let question = format!("Question {number}? ").repeat(20);
            let request = chat(model, &question, TOKENS);
            let right = answer(&client, &request).await.unwrap();
            questions.push((request, right));
        }
        let (stop, stopped) = watch::channel(false);
        let (sender, answers) = watch::channel(0);
        let (questions, sender) = (Arc::new(questions), Arc::new(sender));
        let exam = Exam { frontends, questions, stopped, answers: sender };
        let clients = (0..clients).map(|number| exam.clone().ask(number)).collect();
        Self { clients, stop, answers }
    }

    /// Waits for further answers, so many that some began and ended from now on.
    pub(crate) async fn goes_on(&self) {
        let mut answers = self.answers.clone();
        let enough = *answers.borrow() + 2 * self.clients.len();
        soon("further answers", answers.wait_for(|answers| *answers >= enough)).await.unwrap();
    }

    /// Lets the clients finish what they have asked.
    ///
    /// # Panics
    ///
    /// When any of them was let down.
    pub(crate) async fn finish(mut self) {
        self.stop.send_replace(true);
        let mut failures = Vec::new();
        while let Some(client) = soon("the last answers", self.clients.join_next()).await {
            failures.extend(client.unwrap());
        }
        let answers = *self.answers.borrow();
        assert!(failures.is_empty(), "{} of {answers}: {failures:#?}", failures.len());
        println!("{answers} answers");
    }
}

impl Exam {
    /// Asks one question after the other; returns what went wrong.
    async fn ask(self, client: usize) -> Vec<String> {
        let mut failures = Vec::new();
        for number in client.. {
            if *self.stopped.borrow() {
                break;
            }
            let frontend = {
                let frontends = self.frontends.borrow();
                frontends.get(number % frontends.len().max(1)).copied()
            };
            let Some(frontend) = frontend else {
                failures.push("the Service has no endpoint".to_owned());
                tokio::task::yield_now().await;
                continue;
            };
            let (request, right) = &self.questions[number % self.questions.len()];
            match answer(&Client::new(frontend), request).await {
                Ok(text) if text == *right => {}
                Ok(text) => failures.push(format!("{frontend}: {text:?} instead of {right:?}")),
                Err(why) => failures.push(format!("{frontend}: {why}")),
            }
            self.answers.send_modify(|answers| *answers += 1);
        }
        failures
    }
}
