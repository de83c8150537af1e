//! The tools of a server as the gateway lists them, and the selection of some of them for a command.

use serde::Deserialize;
use serde_json::json;

use crate::{
    changes::render::line_mark,
    exit::{Exit, Failure},
    output::{Output, Style, cell, indented, one_line, print_rows},
};
use countersign_domain::{
    changes::{diff::compare_lines, visible::escape_hidden},
    policy::Globs,
    text::plural,
};

/// The tools of a server, as `GET /api/servers/{name}` lists them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tools {
    pub tools: Vec<Tool>,
    pub known_reads: Option<KnownReads>,
}

/// The list of known reads that the gateway has for a server.
#[derive(Deserialize)]
pub(super) struct KnownReads {
    #[serde(rename = "set")]
    pub recipe_set: String,
    pub packages: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tool {
    pub name: String,
    pub description: String,
    pub verdict: String,
    pub reason: Option<String>,
    pub rules: Vec<String>,
    pub definition_status: String,
    pub mark: Option<String>,
    pub claims_read: bool,
    pub hash: String,
    pub definition: String,
    pub previous: Option<String>,
    #[serde(default)]
    pub may_let_run: bool,
    #[serde(default)]
    pub accepted_as_read: bool,
    #[serde(default)]
    pub accepted_sql_reads: bool,
    /// The entry of the tool on the server's list of known reads: `read`, `dry_run`, `sql_read` or `other_definition`.
    #[serde(rename = "known")]
    pub known_read_entry: Option<String>,
    /// `true` if `servers accept --known-reads` accepts the tool.
    #[serde(default)]
    pub offered: bool,
}

impl Tool {
    pub fn needs_acceptance(&self) -> bool {
        self.claims_read || self.mark.is_some()
    }

    /// Returns the `readOnlyHint` of the definition, whether it is trusted or not; `None` if the definition has none.
    pub fn read_only_hint(&self) -> Option<bool> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Definition {
            annotations: Hints,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Hints {
            read_only_hint: Option<bool>,
        }
        serde_json::from_str::<Definition>(&self.definition).ok()?.annotations.read_only_hint
    }

    pub fn claims_to_only_read(&self) -> bool {
        self.read_only_hint() == Some(true)
    }

    /// Returns `true` if the definition does not say whether the tool only reads, so that a person may know better. A tool that
    /// declares that it writes is not proposed for running without review.
    pub fn has_unknown_effect(&self) -> bool {
        self.may_let_run && self.read_only_hint().is_none()
    }

    /// Describes the effect that the tool claims to have.
    pub fn claimed_effect(&self) -> &'static str {
        if self.claims_to_only_read() { "says that it only reads" } else { MAY_WRITE }
    }

    /// Describes the known effect of a tool on the list of known reads.
    pub fn known_effect(&self) -> &'static str {
        match self.known_read_entry.as_deref() {
            Some("dry_run") => "writes, but not in its dry run",
            Some("sql_read") => "runs SQL, of which statements that only read run without review",
            _ => "is known to only read",
        }
    }

    pub fn is_known_dry_run(&self) -> bool {
        self.known_read_entry.as_deref() == Some("dry_run")
    }

    /// Returns `true` if the list of known reads names the tool, but not this definition, which nobody accepted either.
    pub fn is_uncovered(&self) -> bool {
        self.known_read_entry.as_deref() == Some("other_definition") && self.definition_status != "accepted"
    }
}

const MAY_WRITE: &str = "may write";

/// The tools that names and patterns select.
pub(super) struct Selection {
    /// Selected tools, in the order of the server's list.
    pub tools: Vec<Tool>,
    /// Tools that match a pattern, but are not candidates.
    pub left_out: Vec<Tool>,
}

/// Returns `true` if the text has wildcards. A tool may still have exactly this name.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Selects the tools that are named, and those that a pattern matches and `is_candidate` accepts.
///
/// # Errors
/// Fails if a name or a pattern matches no tool, or if a pattern is invalid.
pub(super) fn select(
    tools: Vec<Tool>,
    selectors: &[String],
    is_candidate: impl Fn(&Tool) -> bool,
) -> Result<Selection, Failure> {
    let has = |name: &String| tools.iter().any(|tool| tool.name == *name);
    let (names, patterns): (Vec<String>, Vec<String>) =
        selectors.iter().cloned().partition(|text| has(text) || !is_pattern(text));
    if let Some(missing) = names.iter().find(|name| !has(name)) {
        return Err(missing_tool(&format!("the server has no tool {}", one_line(missing))));
    }
    let pattern_error = |(pattern, reason): (String, String)| {
        Failure::new(Exit::Usage, format!("{} is not a valid pattern: {}", one_line(&pattern), one_line(&reason)))
    };
    for pattern in &patterns {
        let glob = Globs::new(vec![pattern.clone()]).map_err(pattern_error)?;
        if !tools.iter().any(|tool| glob.matches(&tool.name)) {
            return Err(missing_tool(&format!("none of the server's tools matches {}", one_line(pattern))));
        }
    }
    let globs = Globs::new(patterns).map_err(pattern_error)?;
    let mut selection = Selection { tools: Vec::new(), left_out: Vec::new() };
    for tool in tools {
        if names.contains(&tool.name) || (globs.matches(&tool.name) && is_candidate(&tool)) {
            selection.tools.push(tool);
        } else if globs.matches(&tool.name) {
            selection.left_out.push(tool);
        }
    }
    Ok(selection)
}

fn missing_tool(problem: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("{problem}; `countersign servers show` lists the names"))
}

/// Prints the names of the selected tools, with the effect of each.
pub(super) fn print_summary(
    tools: &[Tool],
    effect: fn(&Tool) -> &'static str,
    out: &mut Output,
) -> Result<(), Failure> {
    out.write_styled_line(Style::Bold, &format!("{}:", plural(tools.len(), "tool")))?;
    let row = |tool: &Tool| {
        let effect = effect(tool);
        let style = if effect == MAY_WRITE { Style::Yellow } else { Style::Dim };
        [cell(Style::Plain, &format!("  {}", tool.name)), cell(style, effect)]
    };
    print_rows(&tools.iter().map(row).collect::<Vec<_>>(), None, out)?;
    Ok(out.write_line("")?)
}

/// Builds the body of a request about the definitions that were shown.
pub(super) fn decision_request(tools: &[Tool]) -> serde_json::Value {
    let tools: Vec<_> = tools.iter().map(|tool| json!({ "name": tool.name, "hash": tool.hash })).collect();
    json!({ "tools": tools })
}

/// Prints the definition to be accepted: whole, or as a diff to the previous one.
pub(super) fn print_definition(tool: &Tool, out: &mut Output) -> Result<(), Failure> {
    out.write_styled(Style::Bold, &tool.name)?;
    let note = match tool.mark.as_deref() {
        Some("TOOL_CHANGED") => "  changed since it was accepted or first seen",
        Some(_) => "  new",
        None if tool.claims_read => "  says that it only reads",
        None => "",
    };
    out.write_styled_line(Style::Yellow, note)?;
    // Each line ends with a line break, so that the last lines can be equal.
    let now = indented(&tool.definition) + "\n";
    match &tool.previous {
        Some(previous) => {
            let before = indented(previous) + "\n";
            for (op, line) in compare_lines(&before, &now) {
                let (sign, style) = line_mark(op);
                out.write_styled_line(style, &format!("  {sign} {}", line.trim_end_matches('\n')))?;
            }
        }
        None => {
            for line in escape_hidden(&tool.description).lines() {
                out.write_line(&format!("  {line}"))?;
            }
            for line in now.lines() {
                out.write_styled_line(Style::Dim, &format!("    {line}"))?;
            }
        }
    }
    out.write_line("")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(definition: &str, previous: Option<&str>) -> Tool {
        Tool {
            name: "fs__read\u{202e}".into(),
            description: "Reads\nfiles\u{1b}[2J".into(),
            verdict: "review".into(),
            reason: None,
            rules: vec!["a".into()],
            definition_status: "changed".into(),
            mark: previous.map(|_| "TOOL_CHANGED".into()),
            claims_read: previous.is_none(),
            hash: "sha256:x".into(),
            definition: definition.into(),
            previous: previous.map(str::to_owned),
            may_let_run: false,
            accepted_as_read: false,
            accepted_sql_reads: false,
            known_read_entry: None,
            offered: false,
        }
    }

    #[test]
    fn summary_counts_one_tool_in_the_singular() {
        let one = || tool("{}", None);
        for (tools, expected) in [(vec![one()], "1 tool:\n"), (vec![one(), one()], "2 tools:\n")] {
            let mut out = Output::memory(false);
            print_summary(&tools, Tool::claimed_effect, &mut out).unwrap();
            let shown = out.contents();
            assert!(shown.starts_with(expected), "{shown}");
        }
    }

    #[test]
    fn accepted_definition_shows_its_hidden_characters() {
        let mut out = Output::memory(false);
        print_definition(&tool("{\"name\":\"read\",\"x\":\"\\u202e\",\"y\":\"\u{202e}\"}", None), &mut out).unwrap();
        let shown = out.contents();
        assert!(shown.starts_with("fs__read\\u{202e}  says that it only reads\n"), "{shown}");
        assert!(shown.contains("files\\u{1b}[2J") && shown.contains("\"y\": \"\\u{202e}\""), "{shown}");
        let mut out = Output::memory(false);
        print_definition(&tool(r#"{"name":"read","n":2}"#, Some(r#"{"name":"read","n":1}"#)), &mut out).unwrap();
        let shown = out.contents();
        assert!(shown.contains("  -   \"n\": 1\n  +   \"n\": 2\n"), "{shown}");
    }

    fn named_tool(name: &str, definition: &str) -> Tool {
        Tool { name: name.into(), may_let_run: true, ..tool(definition, None) }
    }

    #[test]
    fn tools_are_selected_by_their_hints() {
        let read = tool(r#"{"annotations":{"readOnlyHint":true}}"#, None);
        assert!(read.needs_acceptance() && read.claims_to_only_read());
        assert!(!tool("{}", None).claims_to_only_read());
        assert!(!tool("[", None).claims_to_only_read());
    }

    #[test]
    fn only_a_tool_without_a_hint_has_unknown_effect() {
        assert!(named_tool("a", "{}").has_unknown_effect());
        for hint in ["true", "false"] {
            let definition = format!(r#"{{"annotations":{{"readOnlyHint":{hint}}}}}"#);
            assert!(!named_tool("a", &definition).has_unknown_effect(), "{hint}");
        }
        assert!(!tool("{}", None).has_unknown_effect(), "the policy decides on it");
    }

    #[test]
    fn names_and_patterns_select_tools_in_list_order() {
        let tools = || ["fs__read", "fs__write", "fs__w[1]", "git_log"].map(|name| named_tool(name, "{}")).into();
        let chosen = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|text| (*text).to_owned()).collect();
            select(tools(), &wanted, |tool| tool.name != "fs__write").map(|selection| {
                let names = |tools: Vec<Tool>| tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>();
                (names(selection.tools), names(selection.left_out))
            })
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(&["git_log", "fs__read"]).unwrap(), (names(&["fs__read", "git_log"]), names(&[])));
        // An exact name is selected even if the tool needs no action.
        assert_eq!(chosen(&["fs__write"]).unwrap().0, ["fs__write"]);
        assert_eq!(chosen(&["fs__w[1]"]).unwrap().0, ["fs__w[1]"]);
        assert_eq!(chosen(&["fs__*"]).unwrap(), (names(&["fs__read", "fs__w[1]"]), names(&["fs__write"])));
        assert_eq!(chosen(&["fs__*", "fs__write"]).unwrap().0.len(), 3);
        assert_eq!(chosen(&["{fs__r,git_}*"]).unwrap().0, ["fs__read", "git_log"]);
        let exit = |wanted: &[&str]| chosen(wanted).err().unwrap().exit;
        assert_eq!((exit(&["nothing"]), exit(&["x*"])), (Exit::NotFound, Exit::NotFound));
        assert_eq!(exit(&["fs__*", "{"]), Exit::Usage);
    }
}
