//! Help in three sizes: `-h` has the settings of a first day, `--help` those of operators in groups,
//! `--help-all` those of experts too.

use crate::role_help::RoleHelp;
use crate::roles::ROLES;
use clap::builder::Styles;
use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;

/// Name of the flag for the largest help.
const ALL: &str = "help-all";

/// Amount of help.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    FirstDay,
    Operators,
    Experts,
}

impl Size {
    /// The size that a command line asks for, if it asks for help.
    pub(crate) fn of(args: &[OsString]) -> Self {
        let own = args.iter().take_while(|word| *word != "--");
        match own.into_iter().find(|word| *word == "-h" || *word == "--help-all") {
            Some(word) if word == "-h" => Self::FirstDay,
            Some(_) => Self::Experts,
            None => Self::Operators,
        }
    }
}

/// The command line with each role's help in this size.
pub(crate) fn sized(command: Command, size: Size) -> Command {
    ROLES.iter().fold(command, |command, role| {
        command.mut_subcommand(role.name, |found| {
            let found = found.mut_args(|arg| role.sized(arg, size));
            found.arg(all_arg()).after_help(role.examples())
        })
    })
}

fn all_arg() -> Arg {
    let arg = Arg::new(ALL).long(ALL).action(ArgAction::HelpLong);
    arg.hide_short_help(true).help("Print help with the settings of experts too")
}

impl RoleHelp {
    fn sized(&self, arg: Arg, size: Size) -> Arg {
        let is = |names: &[&str]| arg.get_long().is_some_and(|long| names.contains(&long));
        let place = self.first.iter().position(|first| is(&[first]));
        let is_expert = self.experts.iter().any(|names| is(names));
        match (size, place) {
            // One list, and no names of the environment, which are those of the flags.
            (Size::FirstDay, Some(place)) => {
                arg.help_heading(None).display_order(place).hide_env(true)
            }
            (Size::FirstDay, None) => arg.hide_short_help(true),
            (Size::Operators, _) => arg.hide_long_help(is_expert),
            (Size::Experts, _) => arg,
        }
    }

    /// The examples, as help ends with them.
    fn examples(&self) -> String {
        let styles = Styles::styled();
        let (head, code) = (styles.get_header(), styles.get_literal());
        let lines =
            self.examples.map(|(line, does)| format!("  {code}{line}{code:#}\n      {does}"));
        format!("{head}Examples:{head:#}\n{}", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    /// The most settings that `--help` of a role may have: whoever adds one takes one away, or
    /// makes it an expert's.
    const BUDGET: [(&str, usize); 13] = [
        ("up", 55),
        ("proxy", 60),
        ("sidecar", 44),
        ("epp", 64),
        ("agent", 55),
        ("operate", 9),
        ("chat", 12),
        ("bench", 43),
        ("plan", 25),
        ("planner", 46),
        ("simulate", 45),
        ("operator", 7),
        ("doctor", 14),
    ];

    /// Help of a role in this size, as it is printed, and its flags.
    fn help(role: &str, size: Size) -> (String, Vec<String>) {
        let mut command = sized(cli::command(), size);
        command.build();
        let role = command.find_subcommand_mut(role).expect("it is a role");
        let text = match size {
            Size::FirstDay => role.render_help(),
            Size::Operators | Size::Experts => role.render_long_help(),
        };
        let text = text.to_string();
        // Descriptions are further to the right, where a wrapped line may begin with a flag.
        let is_flag =
            |line: &&str| line.find('-').is_some_and(|at| at <= 6 && line[..at].trim().is_empty());
        let lines = text.lines().filter(is_flag);
        let words = lines.filter_map(|line| line.split_whitespace().find(|w| w.starts_with("--")));
        let flags = words.map(|word| word.trim_end_matches("...").trim_start_matches('-'));
        let flags = flags.map(|word| word.split(['[', '=']).next().unwrap_or_default().to_owned());
        let flags = flags.filter(|flag| !["", "help", ALL].contains(&flag.as_str())).collect();
        (text, flags)
    }

    #[test]
    fn short_help_has_the_ten_flags_of_a_first_day_and_two_examples() {
        for role in &ROLES {
            let (text, flags) = help(role.name, Size::FirstDay);
            assert_eq!(flags, role.first, "{text}");
            assert!(flags.len() <= 10, "{text}");
            let examples = text.split("Examples:").nth(1).expect("there are examples");
            let starts = format!("stator {}", role.name);
            let lines = examples.lines().filter(|line| line.trim_start().starts_with(&starts));
            assert_eq!(lines.count(), 2, "{text}");
        }
    }

    #[test]
    fn help_has_as_many_settings_as_a_person_can_read() {
        for role in &ROLES {
            let (_, flags) = help(role.name, Size::Operators);
            let (_, most) = BUDGET.iter().find(|(name, _)| *name == role.name).expect("a budget");
            assert!(flags.len() <= *most, "{} has {}: {flags:?}", role.name, flags.len());
        }
    }

    #[test]
    fn settings_of_experts_exist_and_are_shown_on_demand() {
        for role in &ROLES {
            let (_, some) = help(role.name, Size::Operators);
            let (_, all) = help(role.name, Size::Experts);
            for expert in role.experts.iter().copied().flatten() {
                let shown = [&some, &all].map(|flags| flags.iter().any(|flag| flag == expert));
                assert_eq!(shown, [false, true], "{} --{expert}", role.name);
            }
        }
    }

    #[test]
    fn examples_are_understood() {
        for (line, _) in ROLES.iter().flat_map(|role| role.examples) {
            let matches = cli::command().try_get_matches_from(line.split_whitespace());
            assert!(matches.is_ok(), "{line}: {}", matches.unwrap_err());
        }
    }

    #[test]
    fn the_command_line_says_how_much_help_is_wanted() {
        let size = |line: &str| Size::of(&line.split(' ').map(Into::into).collect::<Vec<_>>());
        assert!(size("stator proxy -h") == Size::FirstDay);
        assert!(size("stator proxy --help-all") == Size::Experts);
        assert!(size("stator proxy --help") == Size::Operators);
        assert!(size("stator agent -- -h") == Size::Operators);
    }
}
