//! A role's page of help, as [`crate::roles`] fills it in.

/// A role's page of help.
pub(crate) struct RoleHelp {
    /// Name of the command.
    pub name: &'static str,
    /// A sentence about the role, for the manual.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the manual's pages show it"))]
    pub about: &'static str,
    /// Settings of a first day, in the order of `-h`.
    pub first: &'static [&'static str],
    /// Command lines, and what each does.
    pub examples: [(&'static str, &'static str); 2],
    /// Settings that only `--help-all` shows.
    pub experts: &'static [&'static [&'static str]],
}
