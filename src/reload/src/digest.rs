//! Computes the hash of everything that a reviewer's consent to a configuration covers.

use countersign_config::{Config, DashboardEdit, OidcConfig, Secret, TokenIssuer, UpstreamOAuth, UpstreamTarget};
use countersign_domain::changes::digest::PartHasher;

/// Returns the SHA-256 of a configuration's policy, `dashboard.edit`, identity provider, token issuers and servers, with the
/// secrets of servers. Only gateways of the store know `salt`, so nobody else can test guesses of a secret against the hash.
pub fn digest(config: &Config, salt: &[u8; 16]) -> String {
    // If a field or a derive changes the `Debug` form of the policy or of servers, refused changes ask for consent again.
    let mut hasher = PartHasher::new("countersign.reload.1");
    hasher.add_part(salt).add_part(format!("{:?}", config.policy).as_bytes());
    hasher.add_optional(config.auth.oidc.as_ref().map(OidcConfig::show).as_deref());
    // Left out where nothing is set, so that digests of earlier versions stay valid.
    if config.dashboard_edit != DashboardEdit::Auto {
        hasher.add_part(b"dashboard.edit").add_part(<&str>::from(config.dashboard_edit).as_bytes());
    }
    hasher.add_texts(config.auth.tokens.iter().map(TokenIssuer::show));
    let sign_in_authorities = config.auth.oidc.iter().map(|oidc| &oidc.authorities);
    let issuer_authorities = config.auth.tokens.iter().map(|issuer| &issuer.authorities);
    for authorities in sign_in_authorities.chain(issuer_authorities).flatten() {
        hasher.add_part(authorities.fingerprint().as_bytes());
    }
    hasher.add_number(config.upstreams.len() as u64);
    for server in &config.upstreams {
        // The `Debug` form leaves out the trust in recipes, and values that may be secrets.
        hasher.add_part(format!("{server:?}").as_bytes());
        hasher.add_texts(server.previews.trusted_tools());
        hash_target(&mut hasher, &server.target);
        for Secret(value) in server.oauth.iter().flat_map(UpstreamOAuth::secrets) {
            hasher.add_part(value.as_bytes());
        }
    }
    hasher.finish()
}

/// Returns the hash of a server's command or address, including the values of its environment and headers. A server with
/// other values is not the one that was trusted.
pub fn target_digest(target: &UpstreamTarget, salt: &[u8; 16]) -> String {
    let mut hasher = PartHasher::new("countersign.reload.target.1");
    hasher.add_part(salt);
    hash_target(&mut hasher, target);
    hasher.finish()
}

fn hash_target(hasher: &mut PartHasher, target: &UpstreamTarget) {
    let add_pairs = |hasher: &mut PartHasher, pairs: Vec<(&String, &Secret)>| {
        hasher.add_number(pairs.len() as u64);
        for (name, value) in pairs {
            hasher.add_part(name.as_bytes()).add_part(value.0.as_bytes());
        }
    };
    match target {
        UpstreamTarget::Command { command, args, env, cwd } => {
            hasher.add_part(b"command").add_part(command.as_bytes()).add_texts(args);
            add_pairs(hasher, env.iter().collect());
            hasher.add_optional(cwd.as_ref().map(|cwd| cwd.to_string_lossy()).as_deref());
        }
        UpstreamTarget::Url { urls, headers, transport } => {
            hasher.add_part(b"url").add_part(format!("{transport:?}").as_bytes());
            hasher.add_texts(urls.iter().map(|url| url.as_str()));
            add_pairs(hasher, headers.iter().map(|(name, value)| (name, value)).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::UpstreamConfig;
    use countersign_domain::policy::{PolicyDefault, Rule, Verdict};

    #[test]
    fn digest_covers_exactly_policy_sign_in_and_servers() {
        let target = |token: &str, arg: &str| UpstreamTarget::Command {
            command: "x".to_owned(),
            args: vec![arg.to_owned()],
            env: [("TOKEN".to_owned(), Secret(token.to_owned()))].into(),
            cwd: None,
        };
        let base = || Config { upstreams: vec![UpstreamConfig::new("a", target("s3cret", "1"))], ..Config::default() };
        let salt = [7; 16];
        let digest_after = |change: &dyn Fn(&mut Config)| {
            let mut config = base();
            change(&mut config);
            digest(&config, &salt)
        };
        let first = digest_after(&|_| {});
        assert!(first.starts_with("sha256:") && first.len() == 71);
        assert_eq!(digest_after(&|c| c.limits.max_batch = 3), first);
        let digest_with_calls = |calls| {
            let rule = Rule::new("a", Verdict::Deny);
            (0..calls).for_each(|_| rule.counts.increment(Verdict::Deny));
            digest_after(&|c| c.policy.rules = vec![rule.clone()])
        };
        assert_eq!(digest_with_calls(0), digest_with_calls(1));
        assert_ne!(digest(&base(), &[8; 16]), first);
        let oauth =
            |secret: &str| UpstreamOAuth { client_secret: Some(Secret(secret.to_owned())), ..UpstreamOAuth::default() };
        let digest_with_secret = |secret| digest_after(&|config| config.upstreams[0].oauth = Some(oauth(secret)));
        assert_ne!(digest_with_secret("1"), digest_with_secret("2"));
        let changes: [&dyn Fn(&mut Config); 8] = [
            &|c| c.dashboard_edit = DashboardEdit::On,
            &|c| c.policy.default = PolicyDefault::Allow,
            &|c| c.upstreams[0].trust_annotations = true,
            &|c| c.upstreams[0].tools_deny = vec!["x".into()],
            &|c| c.upstreams[0].target = target("other", "1"),
            &|c| c.upstreams[0].target = target("s3cret", "2"),
            &|c| c.upstreams.clear(),
            &|c| c.auth.oidc = Some(OidcConfig::new("https://id.example", "gw")),
        ];
        for change in changes {
            assert_ne!(digest_after(change), first);
        }
    }
}
