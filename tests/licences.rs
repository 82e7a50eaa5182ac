//! Everything that is built into the binary has a licence that `deny.toml` allows.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let foreign = packages.iter().filter(|package| !package["source"].is_null());
    let refused: Vec<_> = foreign
        .filter(|package| !package["license"].as_str().is_some_and(|words| fits(words, &allowed)))
        .map(|package| {
            format!("{} {}: {}", package["name"], package["version"], package["license"])
        })
        .collect();
    assert!(packages.len() > 100, "cargo told of {} packages", packages.len());
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn an_expression_fits_when_one_of_its_alternatives_does() {
    let allowed =
        BTreeSet::from(["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].map(String::from));
    for fit in ["MIT", "GPL-3.0 OR MIT", "(GPL-3.0 OR MIT) AND Zlib", "GPL-3.0/MIT"] {
        assert!(fits(fit, &allowed), "{fit}");
    }
    assert!(fits("Apache-2.0 WITH LLVM-exception", &allowed));
    for unfit in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-3.0", "Apache-2.0", ""] {
        assert!(!fits(unfit, &allowed), "{unfit}");
    }
}

/// Whether an expression of SPDX allows what is `allowed`: `AND` over `OR` in parentheses, or `OR`
/// over `AND` without any, which is all that occurs.
fn fits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ");
    if expression.contains('(') {
        return expression.split(" AND ").all(|part| {
            let part = part.trim_start_matches('(').trim_end_matches(')');
            part.split(" OR ").any(|licence| allowed.contains(licence.trim()))
        });
    }
    expression
        .split(" OR ")
        .any(|all| all.split(" AND ").all(|licence| allowed.contains(licence.trim())))
}

/// The list in `deny.toml`, one licence a line.
fn allowed() -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    let text = std::fs::read_to_string(file).expect("deny.toml is there");
    let list = text.split_once("allow = [").expect("a list").1.split_once(']').expect("its end").0;
    list.lines().filter_map(|line| line.split('"').nth(1)).map(String::from).collect()
}

/// What cargo knows of the workspace's dependencies on this platform.
fn metadata() -> Value {
    let host = output(Command::new("rustc").args(["--print", "host-tuple"]));
    let host = String::from_utf8(host).expect("a name");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let told = output(
        Command::new(env!("CARGO"))
            .args(["metadata", "--locked", "--offline", "--format-version=1"])
            .args(["--manifest-path", manifest, "--filter-platform", host.trim()]),
    );
    serde_json::from_slice(&told).expect("an object")
}

fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
