//! One hash of everything that a reviewer's consent to a configuration covers.

use countersign_config::{Config, Secret, UpstreamTarget};
use countersign_domain::changes::digest::{PartHasher, hex};

/// SHA-256 over the policy and the servers of a configuration, secrets included. Only gateways of the
/// store know `salt`, so that nobody else can try secrets against it.
#[must_use]
pub fn digest(config: &Config, salt: &[u8; 16]) -> String {
    let mut hasher = PartHasher::new("countersign.reload.1");
    hasher.part(salt).part(format!("{:?}", config.policy).as_bytes());
    hasher.number(config.upstreams.len() as u64);
    for server in &config.upstreams {
        // The `Debug` form has everything but what may be a secret.
        hasher.part(format!("{server:?}").as_bytes());
        target(&mut hasher, &server.target);
    }
    format!("sha256:{}", hex(&hasher.bytes()))
}

/// Of what a server is started with, or of its address, the values of its environment and headers included: what has
/// another one is not what trust was given to.
#[must_use]
pub fn target_digest(of: &UpstreamTarget, salt: &[u8; 16]) -> String {
    let mut hasher = PartHasher::new("countersign.reload.target.1");
    hasher.part(salt);
    target(&mut hasher, of);
    hasher.finish()
}

fn target(hasher: &mut PartHasher, target: &UpstreamTarget) {
    let pairs = |hasher: &mut PartHasher, pairs: Vec<(&String, &Secret)>| {
        hasher.number(pairs.len() as u64);
        for (name, value) in pairs {
            hasher.part(name.as_bytes()).part(value.0.as_bytes());
        }
    };
    match target {
        UpstreamTarget::Command { command, args, env, cwd } => {
            hasher.part(b"command").part(command.as_bytes()).number(args.len() as u64);
            for arg in args {
                hasher.part(arg.as_bytes());
            }
            pairs(hasher, env.iter().collect());
            hasher.optional(cwd.as_ref().map(|cwd| cwd.to_string_lossy()).as_deref());
        }
        UpstreamTarget::Url { urls, headers, transport } => {
            hasher.part(b"url").part(format!("{transport:?}").as_bytes()).number(urls.len() as u64);
            for url in urls {
                hasher.part(url.as_str().as_bytes());
            }
            pairs(hasher, headers.iter().map(|(name, value)| (name, value)).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::UpstreamConfig;
    use countersign_domain::policy::PolicyDefault;

    #[test]
    fn everything_that_is_consented_to_changes_it_and_nothing_else() {
        let target = |token: &str, arg: &str| UpstreamTarget::Command {
            command: "x".to_owned(),
            args: vec![arg.to_owned()],
            env: [("TOKEN".to_owned(), Secret(token.to_owned()))].into(),
            cwd: None,
        };
        let base = || Config { upstreams: vec![UpstreamConfig::new("a", target("s3cret", "1"))], ..Config::default() };
        let salt = [7; 16];
        let of = |change: &dyn Fn(&mut Config)| {
            let mut config = base();
            change(&mut config);
            digest(&config, &salt)
        };
        let first = of(&|_| {});
        assert!(first.starts_with("sha256:") && first.len() == 71);
        assert_eq!(of(&|c| c.limits.max_batch = 3), first);
        assert_ne!(digest(&base(), &[8; 16]), first);
        let changes: [&dyn Fn(&mut Config); 6] = [
            &|c| c.policy.default = PolicyDefault::Allow,
            &|c| c.upstreams[0].trust_annotations = true,
            &|c| c.upstreams[0].tools_deny = vec!["x".into()],
            &|c| c.upstreams[0].target = target("other", "1"),
            &|c| c.upstreams[0].target = target("s3cret", "2"),
            &|c| c.upstreams.clear(),
        ];
        for change in changes {
            assert_ne!(of(change), first);
        }
    }
}
