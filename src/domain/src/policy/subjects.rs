//! Requests that are no calls of tools: reading a resource, getting a prompt, completing either, and methods of
//! extensions, of which the gateway knows nothing but the name. They are let through or refused; only calls of tools can
//! be reviewed.
//!
//! Which rules speak of them: those that name them (`resources`, `prompts`, `methods`), and those that name nothing and
//! ask for nothing that only a tool has, such as `{ servers: notes, then: deny }`. Of these a review speaks of tools only. Where
//! none does, `policy.default: deny` refuses what belongs to an upstream, and every other default lets it through. What the
//! gateway's own modules have is refused only by a rule that names it.
//!
//! A method of an extension may do what a reviewed tool does. So none passes to a server of which some tool could be
//! reviewed or denied, or is held back by the configuration, unless a rule names it by `methods`.

use std::{borrow::Cow, sync::Arc};

use super::{
    Policy, Rule, Verdict,
    condition::{self, ConditionInputs},
    ruling::principal_value,
};
use crate::{
    policy::{PolicyDefault, PolicyMode},
    principal::Principal,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A URI, or a URI template, as clients see it.
    Resource(&'a str),
    /// A prompt, as clients see it.
    Prompt(&'a str),
    /// A method of an extension.
    Method(&'a str),
}

impl<'a> Subject<'a> {
    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'a str {
        match self {
            Self::Resource(name) | Self::Prompt(name) | Self::Method(name) => name,
        }
    }

    /// For people, and the key of errors.
    #[must_use]
    pub const fn kind_name(self) -> &'static str {
        match self {
            Self::Resource(_) => "resource",
            Self::Prompt(_) => "prompt",
            Self::Method(_) => "method",
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    pub principal: &'a Principal,
    /// `http`, `websocket`, `stdio`, …
    pub transport: &'a str,
    pub revision: &'a str,
    /// What the client calls itself.
    pub client: Option<&'a str>,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    Upstream(&'a str),
    /// A module; the gateway's own is never refused to anybody.
    Module(&'a str),
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// A rule lets it through.
    Allowed,
    /// No rule speaks of it, and the default does not refuse it.
    NoRule,
    Refused(Refusal),
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule that refused; `None` where the default did.
    pub rule: Option<Arc<str>>,
    /// One clause for people.
    pub reason: Arc<str>,
}

impl Policy {
    /// Whether any resource or prompt could be refused to anybody; while not, none needs to be looked at.
    #[must_use]
    pub fn can_refuse_access(&self) -> bool {
        let speaks = |rule: &Rule| {
            rule.then == Verdict::Deny && (!rule.resources.is_empty() || !rule.prompts.is_empty() || is_general(rule))
        };
        self.default == PolicyDefault::Deny || self.rules.iter().any(|rule| speaks(rule))
    }

    /// Whether calls go through whatever is said of them.
    #[must_use]
    pub fn simulates(&self) -> bool {
        self.mode == PolicyMode::Simulate
    }

    /// What the policy says, whether it is enforced or not.
    #[must_use]
    pub fn decide_access(&self, subject: Subject<'_>, owner: Owner<'_>, asker: &Requester<'_>) -> AccessDecision {
        let server = match owner {
            Owner::Module("gateway") => return AccessDecision::NoRule,
            Owner::Upstream(name) | Owner::Module(name) => name,
        };
        let upstream = matches!(owner, Owner::Upstream(_));
        let forms = SubjectSpellings::for_subject(subject);
        for rule in self.rules.iter() {
            let speaks = rule.servers.admits(server)
                && rule.applies_to(asker.principal.role, &asker.principal.name)
                && forms.match_rule(rule, subject, upstream);
            if !speaks {
                continue;
            }
            match (rule.then, asker.holds(rule)) {
                // It may hold or not: the stricter counts.
                (Verdict::Deny, None | Some(true)) => {
                    let said = rule.reason.clone().unwrap_or_else(|| format!("{} says deny", rule.label).into());
                    return AccessDecision::Refused(Refusal { rule: Some(rule.label.clone()), reason: said });
                }
                (Verdict::Allow, Some(true)) => return AccessDecision::Allowed,
                _ => {}
            }
        }
        if upstream && self.default == PolicyDefault::Deny {
            let reason = "policy.default is deny, and no rule allows it".into();
            return AccessDecision::Refused(Refusal { rule: None, reason });
        }
        AccessDecision::NoRule
    }

    /// Whether a method of an extension passes to that server. `gated` says that some tool there is not free.
    #[must_use]
    pub fn allows_method(
        &self,
        server: &str,
        method: &str,
        asker: &Requester<'_>,
        gated: impl FnOnce() -> bool,
    ) -> bool {
        // A rule that would stop a tool of that name stops it too.
        let stops = |rule: &Rule| {
            rule.then != Verdict::Allow
                && rule.servers.admits(server)
                && rule.admits_tool(method)
                && rule.applies_to(asker.principal.role, &asker.principal.name)
        };
        if self.simulates() {
            return true;
        }
        match self.decide_access(Subject::Method(method), Owner::Upstream(server), asker) {
            AccessDecision::Allowed => true,
            AccessDecision::Refused(_) => false,
            AccessDecision::NoRule => {
                self.default == PolicyDefault::Allow && !self.rules.iter().any(|rule| stops(rule)) && !gated()
            }
        }
    }
}

impl Requester<'_> {
    /// Whether the rule's condition holds; `None` where it cannot be evaluated.
    fn holds(&self, rule: &Rule) -> Option<bool> {
        let Some(when) = &rule.when else { return Some(true) };
        let session = condition::text_map(&[
            ("transport", Some(self.transport)),
            ("revision", Some(self.revision)),
            ("client", self.client),
        ]);
        let known = ConditionInputs {
            principal: Some(principal_value(self.principal)),
            session: Some(session),
            ..ConditionInputs::default()
        };
        when.holds(&known).ok()
    }
}

/// Whether it names nothing and asks for nothing that only a tool has.
fn is_general(rule: &Rule) -> bool {
    let of_tools = rule.when.as_ref().is_some_and(|when| when.uses().arguments || when.uses().tool);
    rule.tools.is_empty() && !rule.names_non_tools() && rule.annotations == Default::default() && !of_tools
}

/// The ways to write what is asked for. A rule that denies speaks of it if one of them fits, one that allows if all do.
struct SubjectSpellings<'a> {
    written: Cow<'a, str>,
    /// A URI with its escapes and dots resolved, where that is another text.
    resolved: Option<String>,
}

impl<'a> SubjectSpellings<'a> {
    fn for_subject(subject: Subject<'a>) -> Self {
        let Subject::Resource(uri) = subject else { return Self { written: subject.name().into(), resolved: None } };
        let written = lower_scheme(uri);
        let resolved = resolve_uri(&written);
        Self { resolved: (resolved != written).then_some(resolved), written }
    }

    fn match_rule(&self, rule: &Rule, subject: Subject<'_>, upstream: bool) -> bool {
        let patterns = match subject {
            Subject::Resource(_) => &rule.resources,
            Subject::Prompt(_) => &rule.prompts,
            Subject::Method(_) => &rule.methods,
        };
        if patterns.is_empty() {
            // A method passes only where it is named.
            let may =
                rule.then == Verdict::Deny || (rule.then == Verdict::Allow && !matches!(subject, Subject::Method(_)));
            return upstream && may && is_general(rule);
        }
        let mut fit =
            std::iter::once(&*self.written).chain(self.resolved.as_deref()).map(|form| patterns.matches(form));
        if rule.then == Verdict::Allow { fit.all(|fits| fits) } else { fit.any(|fits| fits) }
    }
}

/// Schemes are compared without regard to case (RFC 3986 section 3.1).
fn lower_scheme(uri: &str) -> Cow<'_, str> {
    match uri.split_once(':') {
        Some((scheme, rest)) if scheme.bytes().any(|b| b.is_ascii_uppercase()) => {
            format!("{}:{rest}", scheme.to_ascii_lowercase()).into()
        }
        _ => uri.into(),
    }
}

/// With escapes decoded, backslashes as slashes, and `.` and `..` taken (RFC 3986 section 6.2.2): what a server may read.
fn resolve_uri(uri: &str) -> String {
    let bytes = uri.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escape = uri.get(at + 1..at + 3).filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        at += if escape.is_some() { 3 } else { 1 };
        plain.push(match escape.unwrap_or(byte) {
            b'\\' => b'/',
            byte => byte,
        });
    }
    let plain = String::from_utf8_lossy(&plain);
    let (start, path) = match plain.find("//") {
        Some(at) => plain.split_at(at + 2),
        None => plain.split_at(plain.find(':').map_or(0, |at| at + 1)),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => {
                // The root and the authority stay.
                if parts.len() > 1 {
                    parts.pop();
                }
            }
            part => parts.push(part),
        }
    }
    format!("{start}{}", parts.join("/"))
}

#[cfg(test)]
mod tests;
