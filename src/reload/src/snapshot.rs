//! The policy in force as the store keeps it, so that a configuration can be compared with it at the next start.
//!
//! The policy is written as in the file. Of servers there is what lets calls through, and no secret: what they are started
//! with, or their address, is a salted hash.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{diff::compare, digest::target_digest, shown::InForce};
use countersign_config::{
    Config, Serialization, UpstreamConfig, UpstreamTarget,
    load::{keys, policy_of},
    reader::Setting,
    show,
};
use countersign_domain::{changes::digest::PartHasher, policy::PolicyConfig};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Body {
    /// Values as YAML, by key.
    policy: BTreeMap<String, String>,
    servers: BTreeMap<String, Server>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Server {
    target: String,
    prefix: String,
    tools_allow: Vec<String>,
    tools_deny: Vec<String>,
    trust_annotations: bool,
    allow_own_files: bool,
    /// See [`Serialization`].
    by_tool: bool,
    previews: String,
    written: Vec<String>,
    /// The tools whose dry run needs no acceptance; none said of a version before, where no dry run needed one.
    vouched: Option<Vec<String>>,
}

/// The configuration that was in force, as far as it is judged: all else is as it is now.
pub(super) struct Past {
    pub config: Config,
    /// Of its policy.
    pub settings: Vec<Setting>,
    /// Why something of its policy is not known, and taken to be as it is now.
    pub unread: Option<String>,
}

/// Why what is in force is not written down.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("{0}")]
    Body(#[from] serde_json::Error),
    #[error("it cannot be read back: {0}")]
    Unreadable(String),
    #[error("it would be read back as something else: {0}")]
    Differs(String),
}

/// `settings` are those in force, and `now` is, with the servers that do not run. What is read back is neither looser nor
/// stricter.
pub(super) fn body(settings: &[InForce], now: &Config, salt: &[u8; 16]) -> Result<String, BodyError> {
    let value = |setting: &InForce| match setting.key {
        // As they are written, they say nothing of what they have from the review, which may be another one than in the file.
        "policy.rules" => show::rules(now),
        "policy.groups" => show::groups(now),
        _ => setting.value.clone(),
    };
    let policy = settings.iter().filter(|setting| setting.key.starts_with("policy."));
    let policy = policy.map(|setting| (setting.key.to_owned(), value(setting))).collect();
    let servers = now.upstreams.iter().map(|one| (one.name.clone(), server(one, salt))).collect();
    let body = serde_json::to_string(&Body { policy, servers })?;
    let Past { config: past, unread, .. } = past(&body, now, salt)?;
    if let Some(unread) = unread {
        return Err(BodyError::Unreadable(unread));
    }
    let mut differs = compare(&past, now).0.policy_loosened;
    differs.extend(compare(now, &past).0.policy_loosened);
    if differs.is_empty() {
        return Ok(body);
    }
    let keys: Vec<&str> = differs.iter().map(|one| one.key.as_str()).collect();
    Err(BodyError::Differs(keys.join(", ")))
}

fn server(config: &UpstreamConfig, salt: &[u8; 16]) -> Server {
    Server {
        target: hash(&config.target, salt),
        prefix: config.prefix.clone(),
        tools_allow: config.tools_allow.clone(),
        tools_deny: config.tools_deny.clone(),
        trust_annotations: config.trust_annotations,
        allow_own_files: config.allow_own_files,
        by_tool: config.serialize == Serialization::Tool,
        previews: recipes(config),
        written: config.previews.written.clone(),
        vouched: Some(config.previews.vouched()),
    }
}

fn recipes(config: &UpstreamConfig) -> String {
    let mut hasher = PartHasher::new("countersign.recipes.1");
    hasher.part(format!("{:?}", config.previews.by_tool).as_bytes());
    hasher.finish()
}

/// Fails where nothing of it is known.
pub(super) fn past(body: &str, now: &Config, salt: &[u8; 16]) -> Result<Past, serde_json::Error> {
    let body: Body = serde_json::from_str(body)?;
    let (policy, settings, unread) = past_policy(body.policy, now);
    let server = |(name, old): (String, Server)| {
        let new = now.upstreams.iter().find(|new| new.name == name);
        let target = new.map(|new| &new.target).filter(|target| hash(target, salt) == old.target);
        let target = target.cloned().unwrap_or_else(|| unknown(old.target));
        let mut was = UpstreamConfig::new(&name, target);
        if let Some(new) = new {
            let previews = if recipes(new) == old.previews { new.previews.clone() } else { was.previews };
            was = UpstreamConfig { previews, target: was.target, ..new.clone() };
        }
        // Recipes that are shipped call nothing that waits; what else was written then is not known any more.
        was.previews.written = old.written;
        if let Some(vouched) = old.vouched {
            was.previews.vouch_only_for(&vouched);
        }
        let serialize = if old.by_tool { Serialization::Tool } else { Serialization::Server };
        UpstreamConfig {
            serialize,
            prefix: old.prefix,
            tools_allow: old.tools_allow,
            tools_deny: old.tools_deny,
            trust_annotations: old.trust_annotations,
            allow_own_files: old.allow_own_files,
            ..was
        }
    };
    let upstreams = body.servers.into_iter().map(server).collect();
    Ok(Past { config: Config { policy, upstreams, ..now.clone() }, settings, unread })
}

/// Keys of another version are left out, since nothing here enforces them; what the others say is known all the same.
fn past_policy(mut values: BTreeMap<String, String>, now: &Config) -> (PolicyConfig, Vec<Setting>, Option<String>) {
    let known = keys();
    let unknown: Vec<String> = values.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect();
    values.retain(|key, _| !unknown.contains(key));
    match policy_of(&values) {
        Ok((policy, settings)) => {
            let unread = (!unknown.is_empty()).then(|| format!("unknown here: {}", unknown.join(", ")));
            (policy, settings, unread)
        }
        Err(error) => (now.policy.clone(), Vec::new(), Some(error.to_string())),
    }
}

/// Stands for what a server was started with before, where that is another thing than now. No configuration has an empty
/// command.
fn unknown(hash: String) -> UpstreamTarget {
    UpstreamTarget::Command { command: String::new(), args: vec![hash], env: BTreeMap::new(), cwd: None }
}

fn hash(target: &UpstreamTarget, salt: &[u8; 16]) -> String {
    match target {
        UpstreamTarget::Command { command, args, .. } if command.is_empty() => args.concat(),
        known => target_digest(known, salt),
    }
}

/// Takes out the servers that would have to go on with what they were started with before.
pub(super) fn take_unknown(config: &mut Config) -> Vec<UpstreamConfig> {
    let is_unknown =
        |one: &UpstreamConfig| matches!(&one.target, UpstreamTarget::Command { command, .. } if command.is_empty());
    let (unknown, known) = std::mem::take(&mut config.upstreams).into_iter().partition(is_unknown);
    config.upstreams = known;
    unknown
}
