//! Tests of tokens that are accepted, their principals, and the cache.

use std::{collections::BTreeMap, time::Instant};

use super::*;

fn verifier(configs: &[TokenIssuer], keys: &[&TestKey]) -> TokenVerifier {
    let verifier = TokenVerifier::new(configs, Some(RESOURCE));
    learn_keys(&verifier, ISSUER, keys, now());
    verifier
}

fn principal(verifier: &TokenVerifier, token: &str) -> Result<Principal, TokenRefusal> {
    verifier.identify(token, now()).map(|identity| (*identity.principal).clone())
}

#[test]
fn token_of_each_algorithm_is_accepted() {
    let mut keys = vec![TestKey::es256("es256"), TestKey::es384("es384"), TestKey::ed25519("ed")];
    keys.extend(["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"].map(|name| TestKey::rsa(name, name)));
    let verifier = verifier(&[issuer_config(ISSUER)], &keys.iter().collect::<Vec<_>>());
    for key in &keys {
        let token = key.sign(&key.header(), &claims(now()));
        assert_eq!(principal(&verifier, &token).unwrap().role, Role::Agent, "{}", key.header());
    }
}

#[test]
fn both_names_of_ed25519_are_accepted() {
    let names = [Some("EdDSA"), Some("Ed25519"), None];
    for published in names {
        let key = TestKey::ed25519("one").published_with(json!({ "alg": published }));
        let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
        for alg in names.into_iter().flatten() {
            let token = key.sign(&merge(&key.header(), json!({ "alg": alg })), &claims(now()));
            assert!(principal(&verifier, &token).is_ok(), "{published:?} {alg}");
        }
    }
}

#[test]
fn principal_has_the_names_scopes_and_claims_of_its_token() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let all = merge(&claims(now()), json!({ "name": "Alice\u{202e} \nA.", "groups": ["dba", 7, "dev"] }));
    let all = merge(&all, json!({ "auth_time": now().as_second() - 5, "acr": "mfa" }));
    let identity = verifier.identify(&key.sign(&key.header(), &all), now()).unwrap();
    let principal = &identity.principal;
    assert_eq!(principal.name, "https://id.example#alice#agent");
    assert_eq!(principal.person_name(), "https://id.example#alice");
    assert_eq!((principal.role, principal.key_id.as_deref()), (Role::Agent, None));
    let claims = principal.claims.as_ref().unwrap();
    assert_eq!(claims.display_name.as_deref(), Some("Alice\\u{202e}  A. (alice at id.example)"));
    assert_eq!(claims.scopes, Some(vec![Scope::ToolsRead, Scope::ToolsPropose]));
    assert_eq!(claims.groups, ["dba", "dev"]);
    assert_eq!(serde_json::from_str::<Value>(&claims.json).unwrap(), all);
    assert_eq!((claims.auth_time, claims.acr.as_deref()), (Some(now().as_second() - 5), Some("mfa")));
    let Credential::Token(credential) = &identity.credential else { panic!("not a token") };
    assert_eq!(credential.expires_at, now().as_second() + 660);
    verifier.check(credential, after(659)).unwrap();
    assert_eq!(verifier.check(credential, after(660)), Err(TokenRefusal::Expired));
}

#[test]
fn ids_that_all_clients_see_are_further_names() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let other_names = |changes: Value| {
        let token = key.sign(&key.header(), &merge(&claims(now()), changes));
        principal(&verifier, &token).unwrap().other_names().to_vec()
    };
    let name = |id: &str| format!("{ISSUER}#{id}");
    assert_eq!(other_names(json!({ "oid": "a b", "email": "a@id.example" })), [name("a%20b")]);
    assert_eq!(other_names(json!({ "uid": "00u1", "oid": "o1" })), [name("o1"), name("00u1")]);
    for unusable in [json!(null), json!(""), json!(1000), json!(["o1"]), json!("a".repeat(256))] {
        assert_eq!(other_names(json!({ "oid": unusable })), [""; 0], "{unusable}");
    }
}

#[test]
fn claims_of_common_providers_are_understood() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let base = merge(&claims(now()), json!({ "client_id": null }));
    for (changes, name) in [
        (json!({}), "https://id.example#alice"),
        (json!({ "azp": "app" }), "https://id.example#alice#app"),
        (json!({ "cid": "0oa1" }), "https://id.example#alice#0oa1"),
        (json!({ "appid": "a#b" }), "https://id.example#alice#a%23b"),
        (json!({ "aud": ["https://other", RESOURCE] }), "https://id.example#alice"),
        (json!({ "aud": "https://gw.example/ws" }), "https://id.example#alice"),
        (json!({ "aud": "https://gw.example/" }), "https://id.example#alice"),
        (json!({ "scope": null, "scp": ["tools:read"] }), "https://id.example#alice"),
        (json!({ "token_use": "access", "typ": "Bearer" }), "https://id.example#alice"),
        (json!({ "exp": now().as_second() as f64 + 0.5 }), "https://id.example#alice"),
    ] {
        let token = key.sign(&key.header(), &merge(&base, changes.clone()));
        assert_eq!(principal(&verifier, &token).unwrap().name, name, "{changes}");
    }
}

#[test]
fn headers_of_common_providers_are_understood() {
    let (key, bait) = (TestKey::es256("one"), TestKey::es256("one"));
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    for changes in [
        json!({ "typ": "JWT" }),
        json!({ "typ": "application/at+JWT" }),
        json!({ "typ": null }),
        // Only one key fits.
        json!({ "kid": null }),
        // These point to another key, and are ignored.
        json!({ "jku": "http://127.0.0.1:9/jwks", "x5u": "http://127.0.0.1:9/x5u", "jwk": bait.public }),
    ] {
        let token = key.sign(&merge(&key.header(), changes.clone()), &claims(now()));
        principal(&verifier, &token).unwrap_or_else(|refusal| panic!("{changes}: {refusal:?}"));
    }
}

#[test]
fn strongest_scope_decides_the_role() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let role = |scope: &str| {
        let token = key.sign(&key.header(), &merge(&claims(now()), json!({ "scope": scope })));
        principal(&verifier, &token).map(|principal| principal.role)
    };
    assert_eq!(role("tools:read admin"), Ok(Role::Admin));
    assert_eq!(role("changes:decide tools:read"), Ok(Role::Reviewer));
    assert_eq!(role("tools:propose"), Ok(Role::Agent));
    assert_eq!(role("openid tools:reads"), Err(TokenRefusal::NoScope));
    assert_eq!(role(""), Err(TokenRefusal::NoScope));
}

#[test]
fn strongest_group_decides_the_role() {
    let key = TestKey::es256("one");
    let roles = |pairs: &[(&str, Role)]| TokenIssuer {
        roles: pairs.iter().map(|(group, role)| ((*group).to_owned(), *role)).collect::<BTreeMap<_, _>>(),
        ..issuer_config(ISSUER)
    };
    let role = |config: TokenIssuer, groups: Value| {
        let token = key.sign(&key.header(), &merge(&claims(now()), json!({ "groups": groups, "scope": "admin" })));
        let principal = principal(&verifier(&[config], &[&key]), &token)?;
        assert_eq!(principal.claims.as_ref().unwrap().scopes, None);
        Ok(principal.role)
    };
    let by_group = || roles(&[("dev", Role::Agent), ("sec", Role::Admin), ("dba", Role::Reviewer)]);
    assert_eq!(role(by_group(), json!(["dev", "dba"])), Ok(Role::Reviewer));
    assert_eq!(role(by_group(), json!("sec")), Ok(Role::Admin));
    assert_eq!(role(by_group(), json!(["Dev", "*"])), Err(TokenRefusal::NoGroup));
    assert_eq!(role(roles(&[("*", Role::Viewer), ("dev", Role::Agent)]), json!([])), Ok(Role::Viewer));
}

/// The ID tokens of Entra ID have the same roles and header as its access tokens.
#[test]
fn only_access_tokens_of_entra_id_get_roles() {
    let key = TestKey::es256("one");
    let config = TokenIssuer {
        roles: BTreeMap::from([("reviewers".to_owned(), Role::Reviewer)]),
        groups_claim: "roles".to_owned(),
        ..issuer_config(ISSUER)
    };
    let verifier = verifier(&[config], &[&key]);
    let base = merge(&claims(now()), json!({ "client_id": null, "scope": null, "roles": ["reviewers"] }));
    let header = merge(&key.header(), json!({ "typ": "JWT" }));
    for (changes, is_accepted) in [
        (json!({}), false),
        (json!({ "sid": "s", "name": "Alice" }), false),
        (json!({ "azp": "app", "auth_time": 1 }), false),
        (json!({ "scp": "access_as_user", "sid": "s" }), true),
        (json!({ "azp": "app" }), true),
        (json!({ "appid": "app" }), true),
    ] {
        let token = key.sign(&header, &merge(&base, changes.clone()));
        assert_eq!(principal(&verifier, &token).is_ok(), is_accepted, "{changes}");
    }
}

#[test]
fn cached_token_is_verified_again_when_it_ends() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let token = key.sign(&key.header(), &claims(now()));
    verifier.identify(&token, now()).unwrap();
    verifier.identify(&token, after(299)).unwrap();
    assert_eq!(verifier.cache.jwt_count(), 1);
    assert_eq!(verifier.identify(&token, after(660)).unwrap_err(), TokenRefusal::Expired);
}

#[test]
fn changed_configuration_ends_earlier_verifications() {
    let key = TestKey::es256("one");
    let config = issuer_config(ISSUER);
    let verifier = verifier(std::slice::from_ref(&config), &[&key]);
    let token = key.sign(&key.header(), &claims(now()));
    let identity = verifier.identify(&token, now()).unwrap();
    let Credential::Token(credential) = &identity.credential else { panic!("not a token") };
    verifier.set_issuers(&[issuer_config(OTHER_ISSUER), config.clone()]);
    verifier.identify(&token, now()).unwrap();
    verifier.check(credential, now()).unwrap();
    verifier.set_issuers(&[TokenIssuer { audiences: vec!["https://gw2".to_owned()], ..config }]);
    learn_keys(&verifier, ISSUER, &[&key], now());
    assert!(verifier.identify(&token, now()).is_err());
    assert!(verifier.check(credential, now()).is_err());
    verifier.set_issuers(&[]);
    assert!(!verifier.is_enabled() && verifier.identify(&token, now()).is_err());
}

#[test]
fn cache_is_bounded_and_removes_ended_tokens_first() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let identity = verifier.identify(&key.sign(&key.header(), &claims(now())), now()).unwrap();
    let cache = TokenCache::default();
    let insert = |n: u64, end: Timestamp| {
        let issuer = verifier.find_issuer(ISSUER).unwrap();
        let valid_until = end.as_millisecond();
        let entry = CachedJwt { identity: identity.clone(), valid_until, issuer, generation: 0 };
        cache.insert_jwt(secret::hash(&n.to_le_bytes()), entry, now());
    };
    (0..7000).for_each(|n| insert(n, now()));
    (7000..10_000).for_each(|n| insert(n, after(1)));
    assert_eq!(cache.jwt_count(), 10_000);
    insert(10_000, after(1));
    assert_eq!(cache.jwt_count(), 3001);
    (10_001..30_000).for_each(|n| insert(n, after(1)));
    assert!((3000..=10_000).contains(&cache.jwt_count()), "{}", cache.jwt_count());
}

#[test]
fn cache_of_introspections_is_bounded_in_bytes() {
    let key = TestKey::es256("one");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let all = merge(&claims(now()), json!({ "x": "x".repeat(8000) }));
    let identity = verifier.identify(&key.sign(&key.header(), &all), now()).unwrap();
    for n in 0..5000_u64 {
        let (outcome, token) = (Ok(identity.clone()), Some(Arc::from("token")));
        let introspection = CachedIntrospection { outcome, token, asked_at: now().as_millisecond() };
        verifier.cache.insert_introspection(secret::hash(&n.to_le_bytes()), introspection, now());
        assert!(verifier.cache.introspection_bytes() < 17 << 20);
    }
    assert!(verifier.cache.introspection_bytes() > 7 << 20);
    verifier.set_issuers(&[]);
    assert_eq!(verifier.cache.introspection_bytes(), 0);
}

/// Measures how long a cached token takes to identify, beside the hash of a key.
#[test]
#[ignore = "a measurement"]
fn measure_cached_token() {
    let key = TestKey::rsa("one", "RS256");
    let verifier = verifier(&[issuer_config(ISSUER)], &[&key]);
    let token = key.sign(&key.header(), &claims(now()));
    let measure = |name: &str, run: &dyn Fn()| {
        let started = Instant::now();
        (0..100_000).for_each(|_| run());
        eprintln!("{name}: {} ns", started.elapsed().as_nanos() / 100_000);
    };
    measure("identify, cached", &|| drop(verifier.identify(&token, now()).unwrap()));
    measure("hash of a key", &|| _ = std::hint::black_box(secret::hash(&token.as_bytes()[..47])));
    eprintln!("{} bytes", token.len());
}

#[test]
fn command_line_learns_client_scopes_and_resource() {
    let mut oidc = OidcConfig::new(ISSUER, "gateway");
    let verifier = TokenVerifier::new(&[], Some(RESOURCE));
    let grant = |audiences: &[&str], roles: &[(&str, Role)]| {
        let audiences = audiences.iter().map(|&audience| audience.to_owned()).collect();
        let roles = roles.iter().map(|&(group, role)| (group.to_owned(), role)).collect();
        verifier.set_issuers(&[TokenIssuer { audiences, roles, ..issuer_config(ISSUER) }]);
        let ClientSettings { issuer, client_id, scopes, resource } = verifier.client_settings(&oidc).unwrap();
        assert_eq!((issuer.as_str(), client_id.as_str()), (ISSUER, "gateway"));
        let (standard, further) = scopes.split_at(4);
        assert_eq!(standard, ["openid", "email", "profile", "groups"]);
        assert!(further.is_empty() || further == ["changes:decide"], "{further:?}");
        (resource, !further.is_empty())
    };
    let resource = Some(RESOURCE.to_owned());
    assert_eq!(grant(&[], &[]), (resource.clone(), true));
    assert_eq!(grant(&["gw", RESOURCE], &[("*", Role::Agent)]), (resource, false));
    assert_eq!(grant(&["gw", "api://gw"], &[]), (Some("api://gw".to_owned()), true));
    assert_eq!(grant(&["gw"], &[]), (None, true), "the issuer chooses the audience");
    oidc.cli_client_id = Some("cli".to_owned());
    assert_eq!(verifier.client_settings(&oidc).unwrap().client_id, "cli");
    oidc.issuer = OTHER_ISSUER.to_owned();
    assert_eq!(verifier.client_settings(&oidc), None, "the tokens would be refused");
}
