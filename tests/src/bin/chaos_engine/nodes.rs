//! One engine on several nodes: the first serves once all others have met it, and they end when it
//! ends.

use crate::STEP;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// Meets the other nodes, and returns the connections to them. On all but the first it returns only
/// when that has ended.
pub(crate) async fn meet(value: &impl Fn(&str) -> String) -> std::io::Result<Vec<TcpStream>> {
    let number = |name: &str| value(name).parse::<u16>().expect("a number");
    let (nodes, port) = (number("--nnodes"), number("--master-port"));
    if number("--node-rank") > 0 {
        let leader = value("--master-addr");
        let mut stream = loop {
            match TcpStream::connect((leader.as_str(), port)).await {
                Ok(stream) => break stream,
                // Its name, its node and its process all come in their own time.
                Err(_) => tokio::time::sleep(STEP).await,
            }
        };
        println!("met {leader}");
        stream.read_u8().await?;
    }
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    let mut others = Vec::new();
    while others.len() + 1 < usize::from(nodes) {
        others.push(listener.accept().await?.0);
    }
    Ok(others)
}
