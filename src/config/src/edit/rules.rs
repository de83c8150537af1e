//! Edits `policy.rules` in the text of a configuration file. Each rule keeps its lines and the comments above them, unless its
//! own keys change.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    EditError, EditedFile, Settings,
    blocks::{Block, Lines, NotEditableError},
    check_visible, set_key,
};
use crate::{
    load::strip_byte_order_mark,
    tree::{self, KeyValue, LocatedNode, Node, find_value, to_json_map},
    yaml::{yaml_text, yaml_value},
};

/// The section of the rules.
const POLICY: &str = "policy";
/// The key of the rules in their section.
const RULES: &str = "rules";

/// A rule of the new list.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleEntry {
    /// The present rule at this index, with its lines.
    Existing(usize),
    /// A rule with these keys. It takes the place and the comments of the present rule at the index `replaces`, if one is given.
    New { replaces: Option<usize>, settings: Settings },
}

/// Returns the keys of the rules in the text of a file, in order, including disabled ones.
///
/// # Errors
/// The text is not YAML.
pub fn rules_in(text: &str) -> Result<Vec<Settings>, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    Ok(rules_of(&tree.node).iter().map(|item| to_json_map(item.node.entries())).collect())
}

/// Returns the text with these rules in place of the present ones.
///
/// # Errors
/// The text is not YAML, an index is not that of a rule, or the file is written in a way that this module does not edit.
pub fn apply_rules(text: &str, entries: &[RuleEntry]) -> Result<String, EditError> {
    for entry in entries {
        if let RuleEntry::New { settings, .. } = entry {
            settings.iter().try_for_each(|(key, value)| check_visible(key, value))?;
        }
    }
    let file = EditedFile::parse(text)?;
    let rules = intended_rules(rules_of(&file.root), entries)?;
    let mut policy = to_json_map(find_value(file.root.entries(), POLICY).map_or(&[][..], Node::entries));
    set_key(&mut policy, RULES, rules.clone());
    let edit = |lines: &mut Lines, sections: &Block| edit_lines(lines, sections, &file.root, entries, &rules);
    let edited = file.set_value(POLICY, Value::Object(policy), "rules", edit);
    edited.map_err(|NotEditableError(reason)| EditError::NotEditable { reason, yaml: rules_to_yaml(&rules) })
}

/// Returns the new rules as the lines of a file that contains nothing else.
///
/// # Errors
/// The text is not YAML, or an index is not that of a rule.
pub fn to_yaml(text: &str, entries: &[RuleEntry]) -> Result<String, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    Ok(rules_to_yaml(&intended_rules(rules_of(&tree.node), entries)?))
}

fn rules_to_yaml(rules: &[Value]) -> String {
    let lines: String = rules.iter().map(|rule| format_rule(rule, 4, "\n")).collect();
    format!("{POLICY}:\n  {RULES}:{}\n{lines}", if rules.is_empty() { " []" } else { "" })
}

/// Returns the entry of a key with its index.
fn find<'a>(map: &'a [KeyValue], key: &str) -> Option<(usize, &'a KeyValue)> {
    map.iter().enumerate().find(|(_, entry)| entry.key == key)
}

/// Returns the rules of a file.
fn rules_of(root: &Node) -> &[LocatedNode] {
    let policy = find_value(root.entries(), POLICY).map_or(&[][..], Node::entries);
    match find_value(policy, RULES) {
        Some(Node::List(items)) => items,
        _ => &[],
    }
}

/// Returns the values of the new rules.
///
/// # Errors
/// [`EditError::NoSuchRule`] if an index is not that of a rule, or a rule is kept twice.
fn intended_rules(old: &[LocatedNode], entries: &[RuleEntry]) -> Result<Vec<Value>, EditError> {
    let mut kept_indexes = BTreeSet::new();
    let value = |entry: &RuleEntry| match entry {
        RuleEntry::Existing(index) if kept_indexes.insert(*index) => {
            old.get(*index).map(|item| item.node.to_json()).ok_or(EditError::NoSuchRule)
        }
        RuleEntry::Existing(_) => Err(EditError::NoSuchRule),
        RuleEntry::New { replaces: Some(index), .. } if *index >= old.len() => Err(EditError::NoSuchRule),
        RuleEntry::New { settings, .. } => Ok(Value::Object(settings.clone())),
    };
    entries.iter().map(value).collect()
}

/// Replaces the lines of the rules in a file with these values.
fn edit_lines(
    lines: &mut Lines,
    sections: &Block,
    root: &Node,
    entries: &[RuleEntry],
    rules: &[Value],
) -> Result<(), NotEditableError> {
    let line_break = lines.line_break;
    let rule_lines =
        |indent: usize| -> String { rules.iter().map(|rule| format_rule(rule, indent, line_break)).collect() };
    let Some((index, policy)) = find(root.entries(), POLICY) else {
        lines.append_section(&format!("{POLICY}:{line_break}  {RULES}:{line_break}{}", rule_lines(4)));
        return Ok(());
    };
    let section = sections.find_range(index)?;
    lines.check_block_key(section.start, POLICY)?;
    let keys = policy.value.node.entries();
    let block = Block::find(lines, keys, section.start + 1, section.end)?;
    let Some((index, old_rules)) = find(keys, RULES) else {
        let indent = if keys.is_empty() { 2 } else { block.indent };
        let line = if keys.is_empty() { section.start + 1 } else { block.end() };
        lines.insert(line, &format!("{:indent$}{RULES}:{line_break}{}", "", rule_lines(indent + 2)));
        return Ok(());
    };
    let range = block.find_range(index)?;
    let items = rules_of(root);
    let has_block = !items.is_empty() && lines.check_block_key(range.start, RULES).is_ok();
    let found = has_block.then(|| Block::find_items(lines, items, range.start + 1, range.end)).transpose()?;
    if let Some(items) = found.as_ref().filter(|_| !rules.is_empty()) {
        let text = compose_rules(lines, items, range.start + 1, entries, rules);
        lines.replace(range.start + 1, items.end(), &text);
        return Ok(());
    }
    if found.is_none() {
        // A list on the line of its key has no comments to keep, or is not understood.
        let first = if items.is_empty() { range.start + 1 } else { range.start };
        let has_comment = (first..range.end).any(|line| lines.line(line).contains('#'));
        if has_comment || !matches!(old_rules.value.node, Node::List(_) | Node::Null) {
            return Err(NotEditableError::new("the rules are not written as indented lines"));
        }
    }
    let indent = block.indent;
    let list = if rules.is_empty() { " []" } else { "" };
    let text = format!("{:indent$}{RULES}:{list}{line_break}{}", "", rule_lines(indent + 2));
    lines.replace(range.start, found.map_or(range.end, |items| items.end()), &text);
    Ok(())
}

/// Returns the line of a rule behind a dash with this indentation.
fn format_rule(rule: &Value, indent: usize, line_break: &str) -> String {
    format!("{:indent$}- {}{line_break}", "", yaml_value(rule, &yaml_text))
}

/// Returns the lines of the new rules. A kept rule keeps its lines, and a replaced one the comments above it. `first` is the first
/// line that belongs to the list.
fn compose_rules(lines: &Lines, items: &Block, first: usize, entries: &[RuleEntry], rules: &[Value]) -> String {
    let mut text = String::new();
    for (entry, rule) in entries.iter().zip(rules) {
        let (index, is_kept) = match entry {
            RuleEntry::Existing(index) => (Some(*index), true),
            RuleEntry::New { replaces, .. } => (*replaces, false),
        };
        if let Some((index, old)) = index.and_then(|index| Some((index, items.entries.get(index)?))) {
            let rule_before = index.checked_sub(1).and_then(|before| items.entries.get(before));
            let first_comment = rule_before.map_or(first, |before| before.end);
            let end = if is_kept { old.end } else { old.start };
            for line in first_comment..end {
                text.push_str(lines.line(line).trim_end_matches(['\n', '\r']));
                text.push_str(lines.line_break);
            }
        }
        if !is_kept {
            text.push_str(&format_rule(rule, items.indent, lines.line_break));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = "\
listen: 127.0.0.1:8080
policy:
  default: review_writes # writes wait
  rules:   # the first that matches decides
    # Never by an agent.
    - { name: no-drops, tools: \"db__*\", then: deny } # for now

    - tools: fs__write_file
      when: 'has(arguments.path)'   # CEL
      then: allow
  # the last word
mcpServers: {}
";

    fn settings(text: &str) -> Settings {
        to_json_map(tree::parse(text).unwrap().node.entries())
    }

    fn new_entry(replaces: Option<usize>, text: &str) -> RuleEntry {
        RuleEntry::New { replaces, settings: settings(text) }
    }

    #[track_caller]
    fn edited(text: &str, entries: &[RuleEntry]) -> String {
        apply_rules(text, entries).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn rules_keep_their_lines_and_comments() {
        let (first, second) = (RuleEntry::Existing(0), RuleEntry::Existing(1));
        assert_eq!(edited(FILE, &[first.clone(), second.clone()]), FILE);
        let added = edited(FILE, &[first.clone(), second.clone(), new_entry(None, "{ then: review, quorum: 2 }")]);
        assert_eq!(
            added,
            FILE.replace("      then: allow\n", "      then: allow\n    - { then: review, quorum: 2 }\n")
        );
        let moved = edited(FILE, &[second.clone(), first.clone()]);
        assert!(moved.contains("decides\n\n    - tools: fs__write_file\n"), "{moved}");
        assert!(moved.contains("then: allow\n    # Never by an agent.\n    - { name: no-drops"), "{moved}");
        assert!(moved.ends_with("# for now\n  # the last word\nmcpServers: {}\n"), "{moved}");
        let changed = edited(FILE, &[new_entry(Some(0), "{ name: no-drops, then: deny }"), second]);
        assert!(
            changed.contains("# Never by an agent.\n    - { name: no-drops, then: deny }\n\n    - tools"),
            "{changed}"
        );
        let removed = edited(FILE, &[first]);
        assert!(removed.contains("# for now\n  # the last word\n"), "{removed}");
        assert!(edited(FILE, &[]).contains("  rules: []\n  # the last word\n"));
    }

    #[test]
    fn list_is_added_where_there_is_none() {
        let new = [new_entry(None, "{ tools: a, then: allow }")];
        let list = "  rules:\n    - { tools: a, then: allow }\n";
        for (text, expected) in [
            ("", format!("policy:\n{list}")),
            ("listen: x\n", format!("listen: x\n\npolicy:\n{list}")),
            ("policy:\n  default: allow\n\nlisten: x\n", format!("policy:\n  default: allow\n{list}\nlisten: x\n")),
            ("policy:\n  rules: []\n", format!("policy:\n{list}")),
            ("policy:\n  rules: [{ then: deny }]\n", format!("policy:\n{list}")),
            ("policy:\n  rules:\n  default: allow\n", format!("policy:\n{list}  default: allow\n")),
        ] {
            assert_eq!(edited(text, &new), expected, "{text}");
        }
        assert_eq!(to_yaml("", &new).unwrap(), format!("policy:\n{list}"));
    }

    #[test]
    fn other_forms_are_refused_with_lines_to_paste() {
        let new = [RuleEntry::Existing(0), new_entry(None, "{ then: deny }")];
        for text in [
            "policy: { rules: [{ then: allow }] }\n",
            "policy:\n  rules: [ # why\n    { then: allow } ]\n",
            "policy:\n  rules:\n    -\n      then: allow\n",
        ] {
            let Err(EditError::NotEditable { yaml, .. }) = apply_rules(text, &new) else { panic!("{text}") };
            assert!(yaml.contains("    - { then: allow }\n    - { then: deny }\n"), "{yaml}");
        }
        for entries in [vec![RuleEntry::Existing(7)], vec![RuleEntry::Existing(0), RuleEntry::Existing(0)]] {
            assert_eq!(apply_rules(FILE, &entries), Err(EditError::NoSuchRule));
        }
        assert_eq!(rules_in(FILE).unwrap().len(), 2);
    }
}
