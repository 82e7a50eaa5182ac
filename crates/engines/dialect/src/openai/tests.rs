//! The dialect against canned answers, over real connections.

use crate::testkit::{Reply, Server, ask, read, shared};
use crate::{Ask, Dialect, Fault, Hand, Kind, Operation, Options, connect};
use serde_json::{Value, json};
use std::sync::Arc;

const HEALTH: &str = "GET /health";
const MODELS: &str = "GET /v1/models";
const COMPLETIONS: &str = "POST /v1/completions";
const CHAT: &str = "POST /v1/chat/completions";
const LIST: &str = r#"{"object":"list","data":[
    {"id":"m","object":"model","created":1,"owned_by":"somebody","max_model_len":64,"meta":{}},
    {"id":"style","object":"model","parent":"m"}]}"#;

fn dialect(server: &Server) -> Arc<dyn Dialect> {
    connect(Kind::Openai, Options { url: server.url.clone(), ..Options::default() }).unwrap()
}

fn parsed(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}

async fn proves(dialect: &Arc<dyn Dialect>) -> Result<Vec<u32>, Fault> {
    let answer = dialect.generate(Ask { hand: Hand::Canary, ..ask(&[1]) }).await?;
    Ok(read(answer).await?.0.tokens)
}

#[tokio::test]
async fn a_server_says_what_it_serves_and_proves_it_by_an_answer() {
    let done = Reply::ok(r#"{"choices":[{"text":"x"}]}"#);
    let mut server =
        Server::start([(HEALTH, Reply::ok("")), (MODELS, Reply::ok(LIST)), (COMPLETIONS, done)])
            .await;
    let dialect = dialect(&server);
    assert_eq!(dialect.healthy().await, Ok(()));
    assert!(matches!(proves(&dialect).await, Err(Fault::Failed(_))), "nothing is known yet");
    let described = dialect.describe().await.unwrap();
    assert_eq!((&*described.model, described.ranks), ("m", 1));
    assert_eq!(described.version, "OpenAI API of somebody");
    assert_eq!(described.context_length, Some(64));
    assert_eq!(described.adapters, ["style"]);
    assert!(described.events.is_empty() && described.block_size.is_none());
    assert_eq!(proves(&dialect).await.map(|tokens| tokens.len()), Ok(1));
    for line in [HEALTH, MODELS] {
        assert_eq!(server.seen.recv().await.unwrap().line, line);
    }
    let asked = server.seen.recv().await.unwrap();
    assert_eq!(parsed(&asked.body), json!({"model": "m", "prompt": "1", "max_tokens": 1}));
}

#[tokio::test]
async fn a_server_without_a_health_check_is_healthy_while_it_lists_its_models() {
    let server = Server::start([(MODELS, Reply::ok(LIST))]).await;
    assert_eq!(dialect(&server).healthy().await, Ok(()));
    let ill = Reply::recorded(503, r#"{"error":{"message":"loading"}}"#);
    let server = Server::start([(HEALTH, ill), (MODELS, Reply::ok(LIST))]).await;
    assert_eq!(dialect(&server).healthy().await, Err(Fault::Overloaded("loading".into())));
    let server = Server::start([]).await;
    assert!(dialect(&server).healthy().await.is_err());
}

#[tokio::test]
async fn a_server_of_chats_or_of_embeddings_alone_proves_itself_too() {
    let wrong = Reply::recorded(400, r#"{"error":{"message":"this is a chat model"}}"#);
    let broken = Reply::recorded(500, "out of memory");
    let check = async |completions: &Reply, chat: Option<Reply>| {
        let replies = [(MODELS, Reply::ok(LIST)), (COMPLETIONS, completions.clone())];
        let chat = chat.map(|reply| (CHAT, reply));
        let mut server = Server::start(replies.into_iter().chain(chat)).await;
        let dialect = dialect(&server);
        dialect.describe().await.unwrap();
        let proved = proves(&dialect).await.map(drop);
        server.seen.close();
        let mut last = None;
        while let Some(seen) = server.seen.recv().await {
            last = Some(seen);
        }
        (proved, last.unwrap())
    };
    let (proved, asked) = check(&wrong, Some(Reply::ok("{}"))).await;
    assert_eq!((proved, &*asked.line), (Ok(()), CHAT));
    let messages = [json!({"role": "user", "content": "1"})];
    assert_eq!(parsed(&asked.body), json!({"model": "m", "messages": messages, "max_tokens": 1}));
    assert_eq!(check(&wrong, None).await.0, Ok(()));
    let failed = Err(Fault::Failed("out of memory".into()));
    assert_eq!(check(&wrong, Some(broken.clone())).await.0, failed);
    let (proved, asked) = check(&broken, Some(Reply::ok("{}"))).await;
    assert_eq!((proved, &*asked.line), (failed, COMPLETIONS), "it is not asked again");
}

#[tokio::test]
async fn token_ids_and_operations_are_refused() {
    let server = Server::start([]).await;
    let dialect = dialect(&server);
    assert!(matches!(dialect.generate(ask(&[1])).await.err(), Some(Fault::Unsupported(_))));
    let fault = dialect.operate(&Operation::ResetCache).await;
    assert!(matches!(fault, Err(Fault::Unsupported(_))));
    assert!(dialect.pair(&shared(1, 0), &crate::testkit::raw("{}")).is_err());
}
