//! The manual's pages of settings (`docs/settings`), made from the command line's own definitions.
//!
//! The test compares the pages with the definitions. With [`WRITE`] set it writes them instead.

use crate::cli;
use crate::role_help::RoleHelp;
use crate::roles::ROLES;
use clap::{Arg, Command};
use std::fmt::Write;
use std::path::PathBuf;

/// Environment variable with which the test writes the pages.
const WRITE: &str = "STATOR_WRITE_SETTINGS";
/// The command that renews the pages.
const RENEW: &str = "STATOR_WRITE_SETTINGS=1 cargo test -p stator settings_pages";

#[test]
fn the_manual_has_every_setting_as_help_does() {
    let mut command = cli::command();
    // Gives switches their values.
    command.build();
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings"));
    let mut pages: Vec<_> = ROLES.iter().map(|role| (role.name, page(role, &command))).collect();
    pages.push(("README", index(&command)));
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(&folder).unwrap();
    }
    for (file, text) in pages {
        let path = folder.join(file).with_extension("md");
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "docs/settings/{file}.md is not as the flags are: {RENEW}");
    }
}

/// The page that lists the others.
fn index(command: &Command) -> String {
    let mut text = String::from(
        "# Settings\n\n\
         Every flag is also an environment variable and a key of the file that `--config` names. The command line\n\
         wins over the environment, the environment over the file. Unknown keys stop the start.\n\n\
         | flag | environment | key of the file |\n| --- | --- | --- |\n\
         | `--http-port 8080` | `STATOR_HTTP_PORT=8080` | `http-port: 8080` |\n\
         | `--rate 4` of `stator bench` | `STATOR_BENCH_RATE=4` | `rate: 4` |\n\
         | `--model m` of `stator chat` | `STATOR_CHAT_MODEL=m` | `model: m` |\n\
         | `--rate 4` of `stator simulate` | `STATOR_SIMULATE_RATE=4` | `rate: 4` |\n\n\
         [manifests/examples](../../manifests/examples) has a commented file for each role that serves.\n\n\
         | command | settings | |\n| --- | ---: | --- |\n",
    );
    for RoleHelp { name, about, .. } in &ROLES {
        let settings: usize = groups(name, command).iter().map(|(_, args)| args.len()).sum();
        line_of(&mut text, format_args!("| [`stator {name}`]({name}.md) | {settings} | {about} |"));
    }
    line_of(
        &mut text,
        format_args!("\nA test keeps these pages as `--help-all` is; `{RENEW}` renews them."),
    );
    text
}

/// The page of one role.
fn page(role: &RoleHelp, command: &Command) -> String {
    let RoleHelp { name, about, first, .. } = role;
    let groups = groups(name, command);
    let mut text = format!(
        "# Settings of `stator {name}`\n\n{about}. [Settings](README.md) says how to set them by environment and file.\n\n\
         ## A first day\n\n| setting | default | |\n| --- | --- | --- |\n"
    );
    for setting in *first {
        let mut all = groups.iter().flat_map(|(_, args)| args);
        let arg = all.find(|arg| arg.get_long() == Some(setting));
        let arg = arg.unwrap_or_else(|| panic!("stator {name} has no --{setting}"));
        row(&mut text, arg, first_sentence(&help(arg)));
    }
    text.push_str("\n## All\n");
    for (group, args) in &groups {
        let _ = write!(text, "\n### {group}\n\n| setting | default | |\n| --- | --- | --- |\n");
        for arg in args {
            row(&mut text, arg, &format!("{}{}", help(arg), values(arg)));
        }
    }
    text
}

/// The settings of a role, in the groups and the order of `--help`.
fn groups<'a>(role: &str, command: &'a Command) -> Vec<(&'a str, Vec<&'a Arg>)> {
    let role = command.find_subcommand(role).expect("it is a role");
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for arg in role.get_arguments().filter(|arg| is_setting(arg)) {
        let group = arg.get_help_heading().unwrap_or("General");
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, args)) => args.push(arg),
            None => groups.push((group, vec![arg])),
        }
    }
    groups
}

/// Whether the argument is for people: neither hidden nor help itself.
fn is_setting(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// A row of a table.
fn row(text: &mut String, arg: &Arg, help: &str) {
    let help = help.replace('|', "\\|");
    line_of(text, format_args!("| {} | {} | {} |", name(arg), default(arg), help));
}

fn line_of(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// The setting as it is written on a command line.
fn name(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names[0].as_str()).unwrap_or_default();
    let Some(long) = arg.get_long() else {
        return if arg.is_last_set() { format!("`-- {value}`") } else { format!("`{value}`") };
    };
    match (arg.get_action().takes_values(), arg.is_require_equals_set()) {
        (false, _) => format!("`--{long}`"),
        (true, true) => format!("`--{long}[={value}]`"),
        (true, false) => format!("`--{long} {value}`"),
    }
}

/// The default of a setting, where it is a value and the same on every machine.
fn default(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    match arg.get_long() {
        // Read from the environment of whoever asks.
        Some("discovery-dir") => {
            "`$XDG_RUNTIME_DIR/stator`, or `stator-$USER` beside temporary files".into()
        }
        _ if values.is_empty() || !arg.get_action().takes_values() => String::new(),
        _ => format!("`{}`", values.join(" ")),
    }
}

/// The whole help on one line, as sentences.
fn help(arg: &Arg) -> String {
    let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('<', "&lt;");
    match text.ends_with(['.', ':']) || text.is_empty() {
        true => text,
        false => format!("{text}."),
    }
}

fn first_sentence(help: &str) -> &str {
    help.split_once(". ").map_or(help, |(first, _)| first).trim_end_matches('.')
}

/// The values that it takes, with their meaning, where they are few.
fn values(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let mut told = Vec::new();
    for value in values.iter().filter(|value| !value.is_hide_set()) {
        let name = format!("`{}`", value.get_name());
        told.push(match value.get_help() {
            Some(help) => format!("{name}: {}", help.to_string().trim_end_matches('.')),
            None => name,
        });
    }
    match told.is_empty() || arg.get_value_names().is_some_and(|names| names[0] == "BOOL") {
        true => String::new(),
        false => format!("<br>{}", told.join("<br>")),
    }
}
