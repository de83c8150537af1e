//! The terms of a review (`policy.review`, and the same keys of a rule): their keys, bounds and invalid combinations.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use super::{
    error::{ValueError, invalid, quoted},
    groups::check_member,
    reader::{Reader, fields::Fields},
    values::{Kind, KindInput, boolean, choice, count, ensure, is_visible_text, list, seconds, variant},
    yaml::{yaml_list, yaml_map},
};
use countersign_domain::{
    changes::{Escalation, SignInTerms, Terms, person::fold_name},
    policy::{GroupMember, Groups},
    principal::Role,
    text::plural,
};

const S: Duration = Duration::from_secs(1);
const QUORUM_RANGE: RangeInclusive<u64> = 1..=100;
const EXPIRE_AFTER_RANGE: RangeInclusive<Duration> = S..=Duration::from_secs(366 * 86_400);
const REMIND_RANGE: RangeInclusive<Duration> = EXPIRE_AFTER_RANGE;
const HOLD_FOR_RANGE: RangeInclusive<Duration> = S..=Duration::from_secs(3600);
const UNDO_FOR_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
const QUESTIONS_CHOICES: [(&str, bool); 2] = [("decline", false), ("ask", true)];
const OWN_AGENTS_CHOICES: [(&str, bool); 2] = [("forbid", false), ("allow", true)];
/// Shorter times leave no time to read the change.
const MAX_AGE_RANGE: RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_secs(7 * 86_400);
const PREVIEW_CHOICES: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// A key with its value as YAML, as it would be written in the file.
pub type FormattedSetting = (&'static str, String);

/// Defines the keys, and how they are read and shown, from lines of a field of [`Terms`], its key and its kind.
macro_rules! terms {
    ($($field:ident: $key:literal, $kind:expr;)*) => {
        pub(super) const TERM_KEYS: [&str; 17] = ["reviewers", $($key),*];

        /// Reads `policy.review`.
        pub(super) fn read_review(r: &mut Reader) -> Terms {
            Terms {
                reviewers: r.read("policy.review.reviewers", list(check_member)),
                $($field: r.read(concat!("policy.review.", $key), $kind),)*
            }
        }

        /// Reads the terms of a rule over those of `policy.review`.
        pub(super) fn read(f: &mut Fields<'_>, review: &Terms) -> Terms {
            let mut terms = review.clone();
            if f.has("reviewers") {
                terms.reviewers = f.parse_texts("reviewers", |name| Ok(name.to_owned()));
            }
            $(f.read_into($key, $kind, &mut terms.$field);)*
            terms
        }

        /// Formats the terms that differ from those of `policy.review`.
        pub(super) fn format_differences(terms: &Terms, review: &Terms) -> Vec<FormattedSetting> {
            let parts = [
                (terms.reviewers != review.reviewers).then(|| ("reviewers", yaml_list(&terms.reviewers))),
                $((terms.$field != review.$field).then(|| ($key, $kind.show(&terms.$field))),)*
            ];
            parts.into_iter().flatten().collect()
        }
    };
}

terms! {
    quorum: "quorum", count(QUORUM_RANGE);
    expire_after: "expire_after", seconds(EXPIRE_AFTER_RANGE).or_null();
    on_expiry: "on_expiry", variant();
    require_comment: "require_comment", boolean();
    edit: "edit", variant();
    preview_required: "preview", choice(PREVIEW_CHOICES);
    on_failed_preview: "on_failed_preview", variant();
    on_review: "on_review", variant();
    hold_for: "hold_for", seconds(HOLD_FOR_RANGE);
    undo_for: "undo_for", seconds(UNDO_FOR_RANGE);
    open_page: "open_page", boolean();
    questions: "questions", choice(QUESTIONS_CHOICES);
    own_agents: "own_agents", choice(OWN_AGENTS_CHOICES);
    sign_in: "sign_in", sign_in().or_null();
    escalate: "escalate", escalation().or_null();
    remind: "remind", seconds(REMIND_RANGE).or_null();
}

/// Returns the kind of the sign-in that a decision requires.
fn sign_in() -> Kind<SignInTerms> {
    const EXAMPLE: &str = "{ max_age: 5m } or { acr: [urn:example:mfa] }, or both";
    let (age, acr) = (seconds(MAX_AGE_RANGE).or_null(), list(check_acr));
    let read = move |input: &KindInput<'_>| {
        let mut terms = SignInTerms::default();
        for entry in input.map_entries("a map", EXAMPLE)? {
            let part = KindInput { node: &entry.value.node, is_textual: false, ..*input };
            match entry.key.as_str() {
                "max_age" => terms.max_age = age.read(&part)?,
                "acr" => terms.acr = acr.read(&part)?,
                other => return Err(invalid(format!("unknown key {}", quoted(other)), format!("Write {EXAMPLE}."))),
            }
        }
        if terms == SignInTerms::default() {
            return Err(invalid("neither max_age nor acr is given", format!("Write {EXAMPLE}.")));
        }
        Ok(terms)
    };
    Kind::new(read, |SignInTerms { max_age, acr }| {
        let age = max_age.as_ref().map(|age| ("max_age", seconds(MAX_AGE_RANGE).show(age)));
        let acr = (!acr.is_empty()).then(|| ("acr", yaml_list(acr)));
        yaml_map(age.into_iter().chain(acr))
    })
}

/// Returns the kind of an escalation.
fn escalation() -> Kind<Escalation> {
    const EXAMPLE: &str = "{ after: 30m, to: [oncall] }";
    // `check_escalation` refuses names that are neither a role nor a group.
    let (time, names) = (seconds(EXPIRE_AFTER_RANGE), list(|_| Ok(())));
    let read = move |input: &KindInput<'_>| {
        let (mut after, mut to) = (None, Vec::new());
        for entry in input.map_entries("a map", EXAMPLE)? {
            let part = KindInput { node: &entry.value.node, is_textual: false, ..*input };
            match entry.key.as_str() {
                "after" => after = Some(time.read(&part)?),
                "to" => to = names.read(&part)?,
                other => return Err(invalid(format!("unknown key {}", quoted(other)), format!("Write {EXAMPLE}."))),
            }
        }
        match after {
            Some(after) if !to.is_empty() => Ok(Escalation { after, to }),
            _ => Err(invalid("after or to is missing", format!("Write {EXAMPLE}."))),
        }
    };
    Kind::new(read, |Escalation { after, to }| {
        yaml_map([("after", seconds(EXPIRE_AFTER_RANGE).show(after)), ("to", yaml_list(to))])
    })
}

/// Checks that the escalation adds reviewers who exist and may decide, before the change expires.
pub(super) fn check_escalation(terms: &Terms, groups: &Groups) -> Result<(), ValueError> {
    let Some(Escalation { after, to }) = &terms.escalate else { return Ok(()) };
    for name in to {
        match Role::parse(name) {
            Some(role) => check_role(role)?,
            None if groups.contains_key(name) => {}
            None => return Err(unknown_group(name, groups)),
        }
    }
    if terms.expire_after.is_some_and(|expire_after| expire_after <= *after) {
        let message = "a change expires before it escalates";
        return Err(invalid(message, "Choose a shorter `after`, or a longer expire_after."));
    }
    Ok(())
}

/// Checks that the role may decide on changes.
fn check_role(role: Role) -> Result<(), ValueError> {
    ensure(role.may_decide(), || {
        let message = format!("{} may not decide on changes", quoted(role.as_str()));
        invalid(message, "Write reviewer, admin, or a group of policy.groups.")
    })
}

fn unknown_group(name: &str, groups: &Groups) -> ValueError {
    let names = groups.keys().take(20).map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    let choice = if names.is_empty() {
        "a group that policy.groups names (there is none yet)".to_owned()
    } else {
        format!("one of {names}")
    };
    invalid(format!("there is no group {}", quoted(name)), format!("Write reviewer, admin, or {choice}."))
}

/// Checks a kind of authentication, which a request lists between spaces.
fn check_acr(text: &str) -> Result<(), ValueError> {
    let remedy = "Write a value of `acr` as the provider's documentation does.";
    ensure(is_visible_text(text, 200) && !text.contains(char::is_whitespace), || {
        invalid(format!("{} is not a kind of authentication", quoted(text)), remedy)
    })
}

/// Checks that the reviewers exist, may decide, and can reach the quorum.
pub(super) fn check_reviewers(terms: &Terms, groups: &Groups) -> Result<(), ValueError> {
    // Different spellings of a name count as one person.
    let mut members: BTreeSet<String> = BTreeSet::new();
    let mut countable = !terms.reviewers.is_empty();
    for reviewer in &terms.reviewers {
        match (Role::parse(reviewer), groups.get(reviewer)) {
            (Some(role), _) => {
                check_role(role)?;
                countable = false;
            }
            (None, Some(group)) => {
                // The identity provider alone knows how many people are in its groups.
                countable &= !group.iter().any(|member| matches!(member, GroupMember::ClaimGroup { .. }));
                members.extend(group.iter().map(|member| fold_name(&member.to_string())));
            }
            (None, None) => return Err(unknown_group(reviewer, groups)),
        }
    }
    if countable && members.len() < terms.quorum as usize {
        let message =
            format!("the quorum is {}, but only {} may decide", terms.quorum, plural(members.len(), "reviewer"));
        return Err(invalid(message, "Lower it, or add people to the group."));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Flags, LoadedConfig, error::ConfigError, load};

    fn load_policy(policy: &str) -> Result<LoadedConfig, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, format!("policy: {policy}")).unwrap();
        load(&Flags { config: Some(file), ..Flags::default() }, &Environment::new(dir.path(), &[("HOME", "/nowhere")]))
    }

    #[test]
    fn required_sign_in_has_an_age_or_kinds() {
        let rules = "{ tools: a, then: review, sign_in: { acr: [urn:example:mfa], max_age: 5m } }, \
                     { tools: b, then: review, sign_in: null }, { tools: c, then: review }";
        let loaded = load_policy(&format!("{{ review: {{ sign_in: {{ max_age: 1h }} }}, rules: [{rules}] }}")).unwrap();
        let policy = &loaded.config.policy;
        let terms = |max_age, acr: &[&str]| {
            Some(SignInTerms { max_age, acr: acr.iter().map(|acr| (*acr).to_owned()).collect() })
        };
        let all: Vec<_> = policy.rules.iter().map(|rule| rule.terms.sign_in.clone()).collect();
        assert_eq!(all, [terms(Some(300), &["urn:example:mfa"]), None, terms(Some(3600), &[])]);
        let shown = |key: &str| loaded.settings.iter().find(|setting| setting.key == key).unwrap().value.clone();
        assert_eq!(shown("policy.review.sign_in"), "{ max_age: 1h }");
        let shown = shown("policy.rules");
        assert!(shown.contains("sign_in: { max_age: 5m, acr: [urn:example:mfa] }"), "{shown}");
        assert!(shown.matches("sign_in").count() == 2 && shown.contains("sign_in: null"), "{shown}");
    }

    #[test]
    fn escalation_is_read_inherited_and_shown() {
        let rules = "{ tools: a, then: review, reviewers: [dba] }, \
                     { tools: b, then: review, reviewers: [dba], escalate: { after: 1h, to: [reviewer] } }, \
                     { tools: c, then: review, escalate: null }";
        let policy = "{ groups: { dba: [ann], oncall: [bob] }, review: { escalate: { to: [oncall], after: 30m } }";
        let loaded = load_policy(&format!("{policy}, rules: [{rules}] }}")).unwrap();
        let escalation = |after, to: &str| Some(Escalation { after, to: vec![to.to_owned()] });
        let all: Vec<_> = loaded.config.policy.rules.iter().map(|rule| rule.terms.escalate.clone()).collect();
        assert_eq!(all, [escalation(1800, "oncall"), escalation(3600, "reviewer"), None]);
        let shown = |key: &str| loaded.settings.iter().find(|setting| setting.key == key).unwrap().value.clone();
        assert_eq!(shown("policy.review.escalate"), "{ after: 30m, to: [oncall] }");
        assert!(shown("policy.rules").contains("escalate: { after: 1h, to: [reviewer] }"), "{}", shown("policy.rules"));
    }

    #[test]
    fn wrong_escalations_are_refused() {
        for (escalate, part) in [
            ("30m", "expected a map"),
            ("{ after: 30m }", "after or to is missing"),
            ("{ to: [admin] }", "after or to is missing"),
            ("{ after: 0s, to: [admin] }", "out of range"),
            ("{ after: 30m, to: [oncall] }", "there is no group `oncall`"),
            ("{ after: 30m, to: [viewer] }", "`viewer` may not decide"),
            ("{ after: 30m, to: [admin], for: 1h }", "unknown key"),
            ("{ after: 30m, to: [admin] }, expire_after: 30m", "expires before it escalates"),
        ] {
            for policy in [
                format!("{{ review: {{ escalate: {escalate} }} }}"),
                format!("{{ rules: [{{ tools: a, then: review, escalate: {escalate} }}] }}"),
            ] {
                let error = load_policy(&policy).unwrap_err().to_string();
                assert!(error.contains(part) && error.contains("escalate"), "{error}");
            }
        }
    }

    #[test]
    fn wrong_sign_ins_are_refused() {
        for (sign_in, part) in [
            ("{}", "neither max_age nor acr"),
            ("5m", "expected a map"),
            ("{ max_age: 1s }", "out of range"),
            ("{ age: 5m }", "unknown key"),
            ("{ acr: ['a b'] }", "not a kind of authentication"),
        ] {
            let error = load_policy(&format!("{{ review: {{ sign_in: {sign_in} }} }}")).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
