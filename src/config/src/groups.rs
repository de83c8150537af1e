//! Reads the members of `policy.groups`.

use super::{
    auth::parse_issuer,
    error::{ValueError, invalid, quoted},
    tree::Node,
    values::{check_visible_name, read_text, read_visible_text},
    yaml::{yaml_list, yaml_map, yaml_text},
};
use countersign_domain::{policy::GroupMember, principal::is_subject_name};

/// Checks the name of a group of reviewers, of a principal or of its owner.
pub(super) fn check_member(name: &str) -> Result<(), ValueError> {
    check_visible_name(name, "a name")
}

/// Reads a member of a group: a name, `{ claim_group: NAME }`, `{ claim_group: [ISSUER, NAME] }` or
/// `{ subject: [ISSUER, SUBJECT] }`.
pub(super) fn read_member(node: &Node) -> Result<GroupMember, ValueError> {
    let remedy = || "Write a name, { claim_group: NAME } or { subject: [ISSUER, SUBJECT] }.".to_owned();
    let Node::Map(entries) = node else {
        let name = read_text(node)?;
        check_member(&name)?;
        if is_subject_name(&name) {
            return Err(invalid(format!("{} is not a name", quoted(&name)), remedy()));
        }
        return Ok(GroupMember::Name(name));
    };
    match &entries[..] {
        [entry] if entry.key == "claim_group" => {
            let (issuer, group) = match &entry.value.node {
                Node::List(items) if items.len() == 2 => (Some(parse_issuer(&items[0].node)?), &items[1].node),
                group => (None, group),
            };
            Ok(GroupMember::ClaimGroup { issuer, group: read_visible_text(group, 200)? })
        }
        [entry] if entry.key == "subject" => match &entry.value.node {
            Node::List(items) if items.len() == 2 => {
                let (issuer, subject) = (parse_issuer(&items[0].node)?, read_text(&items[1].node)?);
                Ok(GroupMember::Subject { issuer, subject })
            }
            other => {
                Err(invalid(format!("expected an issuer and a subject, found {}", other.describe_kind()), remedy()))
            }
        },
        _ => Err(invalid("this is not a member of a group", remedy())),
    }
}

/// Formats a member of a group as in the file.
pub(super) fn show_member(member: &GroupMember) -> String {
    match member {
        GroupMember::Name(name) => yaml_text(name),
        GroupMember::Subject { issuer, subject } => {
            yaml_map([("subject", yaml_list(&[issuer.clone(), subject.clone()]))])
        }
        GroupMember::ClaimGroup { issuer, group } => {
            let value = match issuer {
                Some(issuer) => yaml_list(&[issuer.clone(), group.clone()]),
                None => yaml_text(group),
            };
            yaml_map([("claim_group", value)])
        }
    }
}
