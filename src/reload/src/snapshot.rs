//! Serializes the policy in force for the store, so that the next start can compare the file with it.
//!
//! The policy is written as in the file. Of servers, only the settings that decide on calls are saved, without secrets:
//! commands and addresses are salted hashes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{diff::compare, digest::target_digest, pending::join_keys, settings_view::ActiveSetting};
use countersign_config::{
    AuthConfig, Authorities, Config, OidcConfig, Serialization, TokenIssuer, UpstreamConfig, UpstreamTarget,
    load::{list_keys, policy_from_values},
    reader::Setting,
    show,
};
use countersign_domain::{
    changes::digest::PartHasher,
    policy::{Condition, PolicyConfig},
    principal::Role,
    recipes::{ARGUMENT_VARIABLES, Dispatcher, Recipe, Recipes},
};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SnapshotBody {
    /// Values as YAML, by key.
    policy: BTreeMap<String, String>,
    servers: BTreeMap<String, SavedServer>,
    issuers: BTreeMap<String, SavedIssuer>,
    #[serde(rename = "provider")]
    identity_provider: Option<SavedIdentityProvider>,
    /// The value of `dashboard.edit`; empty in snapshots of versions without that key.
    dashboard_edit: String,
    /// The file set a key. Always `false` in snapshots of versions that did not save it.
    file_has_keys: bool,
}

/// The identity provider with which people sign in.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedIdentityProvider {
    issuer: String,
    client_id: String,
    roles: BTreeMap<String, Role>,
    groups_claim: String,
    require: BTreeMap<String, String>,
    /// The fingerprint of the certificate authorities that are trusted in addition.
    authorities: Option<String>,
}

/// An issuer of access tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedIssuer {
    audiences: Vec<String>,
    roles: BTreeMap<String, Role>,
    groups_claim: String,
    introspects: bool,
    /// The fingerprint of the certificate authorities that are trusted in addition.
    authorities: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedServer {
    /// The salted hash of the command or address.
    target: String,
    prefix: String,
    tools_allow: Vec<String>,
    tools_deny: Vec<String>,
    trust_annotations: bool,
    allow_own_files: bool,
    /// Set for [`Serialization::Tool`].
    #[serde(rename = "by_tool")]
    serialize_by_tool: bool,
    /// The hash of the preview recipes.
    previews: String,
    /// The tools with a recipe of the operator.
    #[serde(rename = "written")]
    tools_with_own_recipe: Vec<String>,
    /// The tools whose SQL queries, dry run or confirmation need no acceptance; absent in snapshots of versions in which none
    /// needed one.
    #[serde(rename = "vouched")]
    trusted_tools: Option<Vec<String>>,
    /// The operations of tools that carry many, because rules and the comparison of recipes refer to them.
    dispatchers: BTreeMap<String, SavedDispatcher>,
}

/// The operations of a tool.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedDispatcher {
    argument: String,
    operations: Vec<String>,
}

/// The earlier configuration in force. Settings that are not compared are taken from the current configuration.
pub(super) struct PreviousConfig {
    pub config: Config,
    /// The settings of the earlier policy.
    pub settings: Vec<Setting>,
    /// The reason why a part of the earlier policy is not known and is taken from the current configuration.
    pub unreadable_reason: Option<String>,
}

/// The reason why the policy in force cannot be saved.
#[derive(Debug, thiserror::Error)]
pub(super) enum SavePolicyError {
    #[error("{0}")]
    Body(#[from] serde_json::Error),
    #[error("the saved policy could not be read back: {0}")]
    Unreadable(String),
    #[error("the saved policy would be read back with other values: {0}")]
    Differs(String),
}

/// Serializes the settings in force and the servers of `config`, including those that do not run. Fails if the result
/// would be read back as a looser or stricter policy. `file_has_keys` is what [`had_file_keys`] returns for the result.
pub(super) fn serialize_policy(
    settings: &[ActiveSetting],
    config: &Config,
    file_has_keys: bool,
    salt: &[u8; 16],
) -> Result<String, SavePolicyError> {
    let value = |setting: &ActiveSetting| match setting.key.as_str() {
        // Rules are written with their effective terms, because the review that they inherit from may differ in the
        // file.
        "policy.rules" => show::rules(config),
        "policy.groups" => show::groups(config),
        _ => setting.value.clone(),
    };
    let policy = settings.iter().filter(|setting| setting.key.starts_with("policy."));
    let policy = policy.map(|setting| (setting.key.clone(), value(setting))).collect();
    let servers = config.upstreams.iter().map(|server| (server.name.clone(), snapshot_server(server, salt))).collect();
    let issuers = config.auth.tokens.iter().map(|issuer| (issuer.issuer.clone(), snapshot_issuer(issuer))).collect();
    let identity_provider = config.auth.oidc.as_ref().map(snapshot_identity_provider);
    let dashboard_edit = <&str>::from(config.dashboard_edit).to_owned();
    let body = SnapshotBody { policy, servers, issuers, identity_provider, dashboard_edit, file_has_keys };
    let body = serde_json::to_string(&body)?;
    let PreviousConfig { config: read_back, unreadable_reason, .. } = parse_previous(&body, config, Some(salt))?;
    if let Some(reason) = unreadable_reason {
        return Err(SavePolicyError::Unreadable(reason));
    }
    let mut differences = compare(&read_back, config).0.policy_loosened;
    differences.extend(compare(config, &read_back).0.policy_loosened);
    if differences.is_empty() { Ok(body) } else { Err(SavePolicyError::Differs(join_keys(&differences))) }
}

/// Returns `true` if the configuration file set a key when this snapshot was made.
pub(super) fn had_file_keys(body: &str) -> bool {
    serde_json::from_str::<SnapshotBody>(body).is_ok_and(|body| body.file_has_keys)
}

fn snapshot_identity_provider(provider: &OidcConfig) -> SavedIdentityProvider {
    let OidcConfig { issuer, client_id, roles, groups_claim, require, authorities, .. } = provider.clone();
    let authorities = authorities.as_ref().map(Authorities::fingerprint);
    SavedIdentityProvider { issuer, client_id, roles, groups_claim, require, authorities }
}

fn snapshot_issuer(issuer: &TokenIssuer) -> SavedIssuer {
    let TokenIssuer { issuer: _, audiences, roles, groups_claim, introspection, authorities } = issuer.clone();
    let authorities = authorities.as_ref().map(Authorities::fingerprint);
    SavedIssuer { audiences, roles, groups_claim, introspects: introspection.is_some(), authorities }
}

fn snapshot_server(config: &UpstreamConfig, salt: &[u8; 16]) -> SavedServer {
    SavedServer {
        target: target_hash(&config.target, salt),
        prefix: config.prefix.clone(),
        tools_allow: config.tools_allow.clone(),
        tools_deny: config.tools_deny.clone(),
        trust_annotations: config.trust_annotations,
        allow_own_files: config.allow_own_files,
        serialize_by_tool: config.serialize == Serialization::Tool,
        previews: hash_recipes(config),
        tools_with_own_recipe: config.previews.tools_with_own_recipe.clone(),
        trusted_tools: Some(config.previews.trusted_tools()),
        dispatchers: snapshot_dispatchers(&config.previews),
    }
}

fn snapshot_dispatchers(recipes: &Recipes) -> BTreeMap<String, SavedDispatcher> {
    let snapshot = |dispatcher: &Dispatcher| SavedDispatcher {
        argument: dispatcher.argument.source().to_owned(),
        operations: dispatcher.operations.keys().cloned().collect(),
    };
    let recipes = recipes.by_tool.iter();
    recipes.filter_map(|(tool, recipe)| Some((tool.clone(), snapshot(recipe.dispatcher.as_ref()?)))).collect()
}

/// Returns recipes that only tell operations apart.
fn restore_dispatchers(saved: BTreeMap<String, SavedDispatcher>) -> Recipes {
    let restore = |SavedDispatcher { argument, operations }| {
        let argument = Condition::compile_for(&argument, ARGUMENT_VARIABLES).ok()?;
        let operations = operations.into_iter().map(|name| (name, Recipe::default())).collect();
        Some(Recipe { dispatcher: Some(Dispatcher { argument, operations }), ..Recipe::default() })
    };
    let by_tool: BTreeMap<_, _> = saved.into_iter().filter_map(|(tool, saved)| Some((tool, restore(saved)?))).collect();
    Recipes { by_tool: by_tool.into(), ..Recipes::default() }
}

fn hash_recipes(config: &UpstreamConfig) -> String {
    let mut hasher = PartHasher::new("countersign.recipes.1");
    hasher.add_part(format!("{:?}", config.previews.by_tool).as_bytes());
    hasher.finish()
}

/// Parses a snapshot, and completes it with the current configuration `now`. Without the salt, the targets of servers count as
/// unchanged. Fails if nothing of it can be read.
pub(super) fn parse_previous(
    body: &str,
    now: &Config,
    salt: Option<&[u8; 16]>,
) -> Result<PreviousConfig, serde_json::Error> {
    let body: SnapshotBody = serde_json::from_str(body)?;
    let (policy, settings, unreadable_reason) = parse_previous_policy(body.policy, now);
    let upstreams = body.servers.into_iter();
    let upstreams = upstreams.map(|(name, saved)| restore_server(&name, saved, &now.upstreams, salt)).collect();
    let tokens = body.issuers.into_iter();
    let tokens = tokens.map(|(issuer, saved)| restore_issuer(issuer, saved, &now.auth.tokens)).collect();
    let oidc = body.identity_provider.map(|saved| restore_identity_provider(saved, now.auth.oidc.as_ref()));
    let auth = AuthConfig { oidc, tokens, ..now.auth.clone() };
    let dashboard_edit = body.dashboard_edit.parse().unwrap_or_default();
    let config = Config { policy, upstreams, auth, dashboard_edit, ..now.clone() };
    Ok(PreviousConfig { config, settings, unreadable_reason })
}

/// Restores a server of the snapshot, with the settings that are not saved from the server of that name in `now`.
fn restore_server(name: &str, saved: SavedServer, now: &[UpstreamConfig], salt: Option<&[u8; 16]>) -> UpstreamConfig {
    let new = now.iter().find(|new| new.name == name);
    let is_unchanged = |target: &UpstreamTarget| salt.is_none_or(|salt| target_hash(target, salt) == saved.target);
    let target = new.map(|new| &new.target).filter(|target| is_unchanged(target));
    let target = target.cloned().unwrap_or_else(|| unknown_target(saved.target));
    let mut previous = UpstreamConfig::new(name, target);
    previous.previews = restore_dispatchers(saved.dispatchers);
    if let Some(new) = new {
        let previews = if hash_recipes(new) == saved.previews { new.previews.clone() } else { previous.previews };
        previous = UpstreamConfig { previews, target: previous.target, ..new.clone() };
    }
    // Of the operator's earlier recipes, only the names are restored, so that changed ones wait again.
    previous.previews.tools_with_own_recipe = saved.tools_with_own_recipe;
    if let Some(trusted) = saved.trusted_tools {
        previous.previews.trust_only(&trusted);
    }
    UpstreamConfig {
        serialize: if saved.serialize_by_tool { Serialization::Tool } else { Serialization::Server },
        prefix: saved.prefix,
        tools_allow: saved.tools_allow,
        tools_deny: saved.tools_deny,
        trust_annotations: saved.trust_annotations,
        allow_own_files: saved.allow_own_files,
        ..previous
    }
}

/// Restores an issuer of the snapshot, with the settings that are not saved from the same issuer in `now`.
fn restore_issuer(issuer: String, saved: SavedIssuer, now: &[TokenIssuer]) -> TokenIssuer {
    let SavedIssuer { audiences, roles, groups_claim, introspects, authorities } = saved;
    let new = now.iter().find(|new| new.issuer == issuer);
    let introspection = new.and_then(|new| new.introspection.clone()).filter(|_| introspects);
    let authorities = new.and_then(|new| previous_authorities(new.authorities.as_ref(), authorities.as_deref()));
    TokenIssuer { issuer, audiences, roles, groups_claim, introspection, authorities }
}

/// Restores the identity provider of the snapshot, with the settings that are not saved from the one in `now`.
fn restore_identity_provider(saved: SavedIdentityProvider, now: Option<&OidcConfig>) -> OidcConfig {
    let SavedIdentityProvider { issuer, client_id, roles, groups_claim, require, authorities } = saved;
    let mut previous = now.cloned().unwrap_or_else(|| OidcConfig::new(&issuer, &client_id));
    previous.authorities = previous_authorities(previous.authorities.as_ref(), authorities.as_deref());
    (previous.issuer, previous.client_id, previous.groups_claim) = (issuer, client_id, groups_claim);
    (previous.roles, previous.require) = (roles, require);
    previous
}

/// Returns the authorities if they are the previous ones. Others are not stored, and count as if there had been none.
fn previous_authorities(now: Option<&Authorities>, fingerprint: Option<&str>) -> Option<Authorities> {
    now.filter(|now| Some(now.fingerprint().as_str()) == fingerprint).cloned()
}

/// Parses the saved policy, and returns the reason why a part of it could not be read, if there is one. Keys of another version
/// are skipped, since this version cannot enforce them.
fn parse_previous_policy(
    mut values: BTreeMap<String, String>,
    now: &Config,
) -> (PolicyConfig, Vec<Setting>, Option<String>) {
    let is_known = |key: &str| list_keys().any(|known| known == key);
    let unknown_keys: Vec<String> = values.keys().filter(|key| !is_known(key)).cloned().collect();
    values.retain(|key, _| !unknown_keys.contains(key));
    match policy_from_values(&values) {
        Ok((policy, settings)) => {
            let reason = (!unknown_keys.is_empty())
                .then(|| format!("keys unknown to this version: {}", unknown_keys.join(", ")));
            (policy, settings, reason)
        }
        Err(error) => (now.policy.clone(), Vec::new(), Some(error.to_string())),
    }
}

/// Builds a placeholder for an earlier target of which only the hash is known. It has an empty command, which no
/// configuration can have.
fn unknown_target(hash: String) -> UpstreamTarget {
    UpstreamTarget::Command { command: String::new(), args: vec![hash], env: BTreeMap::new(), cwd: None }
}

/// Returns the salted hash of a target; for a placeholder ([`unknown_target`]), the hash that it stands for.
fn target_hash(target: &UpstreamTarget, salt: &[u8; 16]) -> String {
    match target {
        UpstreamTarget::Command { command, args, .. } if command.is_empty() => args.concat(),
        known => target_digest(known, salt),
    }
}

/// Removes and returns the servers whose earlier target would stay in force but is not known.
pub(super) fn take_servers_with_unknown_target(config: &mut Config) -> Vec<UpstreamConfig> {
    let is_unknown = |server: &UpstreamConfig| matches!(&server.target, UpstreamTarget::Command { command, .. } if command.is_empty());
    let (unknown, known_servers) = std::mem::take(&mut config.upstreams).into_iter().partition(is_unknown);
    config.upstreams = known_servers;
    unknown
}
