//! Requests that are not tool calls: reading a resource, getting a prompt, completing either, and extension methods, of
//! which the gateway knows only the name. They are allowed or refused; only tool calls can be reviewed.
//!
//! A rule covers them if it names them (`resources`, `prompts`, `methods`), or if it names nothing and has no condition
//! that only tools can meet, such as `{ servers: notes, then: deny }`. A review rule without names covers only tools.
//! If no rule applies, `policy.default: deny` refuses subjects of upstreams, and every other default allows them.
//! Subjects of the gateway's own modules are refused only by a rule that names them.
//!
//! An extension method may have the effects of a reviewed tool. It is therefore refused if some tool of the server
//! could be reviewed or denied, or is disabled in the configuration, unless a rule names the method in `methods`.

use std::{borrow::Cow, sync::Arc};

use percent_encoding::percent_decode_str;

use super::{Policy, Rule, Verdict, condition, ruling::principal_value};
use crate::{
    changes::Proposer,
    policy::{PolicyDefault, PolicyMode},
    principal::Principal,
};

/// The requested subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A URI or URI template that clients see.
    Resource(&'a str),
    /// A prompt name that clients see.
    Prompt(&'a str),
    /// An extension method.
    Method(&'a str),
}

impl<'a> Subject<'a> {
    /// Returns the URI or name.
    pub const fn name(self) -> &'a str {
        match self {
            Self::Resource(name) | Self::Prompt(name) | Self::Method(name) => name,
        }
    }

    /// Returns the kind of subject, for messages and as the key of errors.
    pub const fn kind_name(self) -> &'static str {
        match self {
            Self::Resource(_) => "resource",
            Self::Prompt(_) => "prompt",
            Self::Method(_) => "method",
        }
    }
}

/// The principal and session of a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    pub principal: &'a Principal,
    /// `http`, `websocket`, `stdio`, …
    pub transport: &'a str,
    pub revision: &'a str,
    /// The name that the client reports.
    pub client: Option<&'a str>,
}

/// An owned [`Requester`], for rules that are applied after its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedRequester {
    pub principal: Arc<Principal>,
    pub transport: &'static str,
    pub revision: &'static str,
    pub client: Option<String>,
}

impl OwnedRequester {
    pub fn as_requester(&self) -> Requester<'_> {
        let Self { principal, transport, revision, client } = self;
        Requester { principal, transport, revision, client: client.as_deref() }
    }
}

/// The provider of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectProvider<'a> {
    Upstream(&'a str),
    /// A module. Subjects of the module `gateway` are never refused.
    Module(&'a str),
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// A rule allows it.
    Allowed,
    /// No rule covers it, and the default does not refuse it.
    NoRule,
    Refused(Refusal),
}

/// The reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule that refused; `None` if the default did.
    pub rule: Option<Arc<str>>,
    /// One clause for people.
    pub reason: Arc<str>,
}

impl Policy {
    /// Returns `true` if a resource or prompt could be refused to anyone. Otherwise none needs to be checked.
    pub fn can_refuse_access(&self) -> bool {
        let can_deny = |rule: &Rule| {
            rule.then == Verdict::Deny && (!rule.resources.is_empty() || !rule.prompts.is_empty() || is_general(rule))
        };
        self.default == PolicyDefault::Deny || self.rules.iter().any(|rule| can_deny(rule))
    }

    /// Returns `true` if the policy is not enforced, so that all requests are allowed.
    pub fn simulates(&self) -> bool {
        self.mode == PolicyMode::Simulate
    }

    /// Returns the decision of the policy, whether it is enforced or not.
    #[must_use]
    pub fn decide_access(
        &self,
        subject: Subject<'_>,
        provider: SubjectProvider<'_>,
        requester: &Requester<'_>,
    ) -> AccessDecision {
        let server = match provider {
            SubjectProvider::Module("gateway") => return AccessDecision::NoRule,
            SubjectProvider::Upstream(name) | SubjectProvider::Module(name) => name,
        };
        let is_upstream = matches!(provider, SubjectProvider::Upstream(_));
        let spellings = SubjectSpellings::for_subject(subject);
        for rule in self.rules.iter() {
            let covers = rule.servers.admits(server)
                && rule.applies_to(requester.principal.role, &requester.principal.name)
                && spellings.match_rule(rule, subject, is_upstream);
            if !covers {
                continue;
            }
            match (rule.then, requester.holds(rule)) {
                // The condition may hold or not, so the stricter verdict counts.
                (Verdict::Deny, None | Some(true)) => {
                    let refusal = Refusal { rule: Some(rule.label.clone()), reason: rule.shown_reason() };
                    return AccessDecision::Refused(refusal);
                }
                (Verdict::Allow, Some(true)) => return AccessDecision::Allowed,
                _ => {}
            }
        }
        if is_upstream && self.default == PolicyDefault::Deny {
            let reason = "policy.default is deny, and no rule allows it".into();
            return AccessDecision::Refused(Refusal { rule: None, reason });
        }
        AccessDecision::NoRule
    }

    /// Returns `true` if an extension method may be sent to that server. `has_blockable_tool` tells whether the
    /// policy could block a call of some tool there.
    pub fn allows_method(
        &self,
        server: &str,
        method: &str,
        requester: &Requester<'_>,
        has_blockable_tool: impl FnOnce() -> bool,
    ) -> bool {
        // A rule that would block a tool of that name blocks the method too.
        let blocks_method = |rule: &Rule| {
            rule.then != Verdict::Allow
                && rule.servers.admits(server)
                && rule.admits_tool(method)
                && rule.applies_to(requester.principal.role, &requester.principal.name)
        };
        if self.simulates() {
            return true;
        }
        match self.decide_access(Subject::Method(method), SubjectProvider::Upstream(server), requester) {
            AccessDecision::Allowed => true,
            AccessDecision::Refused(_) => false,
            AccessDecision::NoRule => {
                self.default == PolicyDefault::Allow
                    && !self.rules.iter().any(|rule| blocks_method(rule))
                    && !has_blockable_tool()
            }
        }
    }
}

impl<'a> Requester<'a> {
    /// Creates the requester of a change, which `principal` proposed ([`Proposer::to_principal`]).
    pub fn for_proposer(proposer: &'a Proposer, principal: &'a Principal) -> Self {
        let Proposer { transport, revision, client_name, .. } = proposer;
        Self { principal, transport, revision: revision.as_deref().unwrap_or_default(), client: client_name.as_deref() }
    }

    /// Evaluates the condition of a rule; `None` if it cannot be evaluated.
    fn holds(&self, rule: &Rule) -> Option<bool> {
        let Some(when) = &rule.when else { return Some(true) };
        when.holds(&[("principal", &principal_value(self.principal)), ("session", &self.session_value())]).ok()
    }

    /// Returns the value of `session` for conditions.
    pub(super) fn session_value(&self) -> cel::Value {
        condition::text_map(&[
            ("transport", Some(self.transport)),
            ("revision", Some(self.revision)),
            ("client", self.client),
        ])
    }
}

/// Returns `true` if the rule names nothing and has no condition that only tools can meet.
fn is_general(rule: &Rule) -> bool {
    let needs_tool = rule.when.as_ref().is_some_and(|when| when.uses("arguments") || when.uses("tool"));
    rule.tools.is_empty() && !rule.names_non_tools() && rule.annotations == Default::default() && !needs_tool
}

/// The spellings of a subject. A deny rule covers it if one of them matches, an allow rule if all of them match.
struct SubjectSpellings<'a> {
    written_name: Cow<'a, str>,
    /// The URI with escapes and dot segments resolved, if it differs.
    resolved: Option<String>,
}

impl<'a> SubjectSpellings<'a> {
    fn for_subject(subject: Subject<'a>) -> Self {
        let Subject::Resource(uri) = subject else {
            return Self { written_name: subject.name().into(), resolved: None };
        };
        let written_name = lower_scheme(uri);
        let resolved = resolve_uri(&written_name);
        Self { resolved: (resolved != written_name).then_some(resolved), written_name }
    }

    fn match_rule(&self, rule: &Rule, subject: Subject<'_>, is_upstream: bool) -> bool {
        let patterns = match subject {
            Subject::Resource(_) => &rule.resources,
            Subject::Prompt(_) => &rule.prompts,
            Subject::Method(_) => &rule.methods,
        };
        if patterns.is_empty() {
            // An allow rule must name a method to cover it.
            let is_relevant =
                rule.then == Verdict::Deny || (rule.then == Verdict::Allow && !matches!(subject, Subject::Method(_)));
            return is_upstream && is_relevant && is_general(rule);
        }
        let mut matches = std::iter::once(&*self.written_name)
            .chain(self.resolved.as_deref())
            .map(|spelling| patterns.matches(spelling));
        if rule.then == Verdict::Allow { matches.all(|matched| matched) } else { matches.any(|matched| matched) }
    }
}

/// Converts the scheme to lower case, because schemes are case-insensitive (RFC 3986 section 3.1).
fn lower_scheme(uri: &str) -> Cow<'_, str> {
    match uri.split_once(':') {
        Some((scheme, rest)) if scheme.bytes().any(|b| b.is_ascii_uppercase()) => {
            format!("{}:{rest}", scheme.to_ascii_lowercase()).into()
        }
        _ => uri.into(),
    }
}

/// Resolves escapes, backslashes, `.` and `..` in a URI (RFC 3986 section 6.2.2), as a server may do.
fn resolve_uri(uri: &str) -> String {
    let plain = percent_decode_str(uri).decode_utf8_lossy().replace('\\', "/");
    let (start, path) = match plain.find("//") {
        Some(at) => plain.split_at(at + 2),
        None => plain.split_at(plain.find(':').map_or(0, |at| at + 1)),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            // The root and the authority stay.
            ".." if parts.len() > 1 => _ = parts.pop(),
            "." | ".." => {}
            part => parts.push(part),
        }
    }
    format!("{start}{}", parts.join("/"))
}

#[cfg(test)]
mod tests;
