//! Generates the services from their protobuf files, without a `protoc` binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "stator/worker/v1/worker.proto",
        "stator/peers/v1/peers.proto",
        "inference/v2/inference.proto",
    ];
    let files = protox::compile(files, ["proto"])?;
    // Events are not copied into their messages.
    tonic_prost_build::configure().bytes(".stator.worker.v1.EventMessage").compile_fds(files)?;
    Ok(())
}
