//! Checks of the flags for a server of the OpenAI API.

use super::stock_args::{RoleArg, StockArgs};
use super::{EngineArgs, Faults};

/// Faults of missing flags, and of flags without use for such a server.
pub(super) fn faults(engine: &EngineArgs, stock: &StockArgs) -> Vec<String> {
    let mut faults = Faults::default();
    let mut refuse = |refused: bool, fault: &str| {
        if refused {
            faults.0.push(fault.to_owned());
        }
    };
    refuse(stock.attach.is_none(), "attach: `http://host:port` of a server that runs is needed");
    refuse(engine.model.is_some(), "model: the server makes its own tokens, no folder is needed");
    refuse(stock.role != RoleArg::Aggregated, "role: the server does all of a request");
    refuse(stock.connector.is_some(), "connector: the server hands no KV over");
    if let Some(url) = stock.attach.as_deref().filter(|url| !is_origin(url)) {
        faults.0.push(format!("attach: {url:?} has more than `http://host:port`"));
    }
    faults.0
}

/// Whether a URL ends with its host or port. Malformed URLs are reported elsewhere.
fn is_origin(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    !rest.trim_end_matches('/').contains(['/', '?', '#', '@'])
}

#[cfg(test)]
mod tests {
    use super::super::Runs;
    use super::super::tests::check;
    use stator_dialect::Kind;

    #[test]
    fn a_server_needs_no_more_than_its_url() {
        for url in ["http://127.0.0.1:8080", "https://engine.pool.svc/"] {
            let args = ["--engine=openai", "--attach", url, "--block-size=32"];
            let settings = check(&args).unwrap();
            let Runs::Stock(stock) = settings.engine else { panic!("{:?}", settings.engine) };
            assert_eq!((stock.kind, stock.block_size), (Kind::Openai, Some(32)));
        }
    }

    #[test]
    fn what_a_server_has_no_use_for_is_refused_at_once() {
        let wrong = ["--engine=openai", "--model=/m", "--role=decode", "--connector=x"];
        let error = check(&[&wrong[..], &["--block-size=0"]].concat()).unwrap_err();
        for line in [
            "attach: `http://host:port` of a server that runs is needed",
            "model: the server makes its own tokens, no folder is needed",
            "role: the server does all of a request",
            "connector: the server hands no KV over",
            "block-size: 0 is not in 1..=1024",
        ] {
            assert!(error.lines().any(|found| found == line), "{line}\nmissing in\n{error}");
        }
        let error = check(&["--engine=openai", "--attach=http://h:1/v1"]).unwrap_err();
        assert_eq!(error, "attach: \"http://h:1/v1\" has more than `http://host:port`");
    }
}
