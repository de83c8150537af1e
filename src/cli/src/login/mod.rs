//! `login`: signs a person in at the identity provider of a gateway, and stores the tokens for later commands.

mod device;
mod loopback;

use jiff::Timestamp;
use url::Url;

use super::{
    args::LoginArgs,
    browser,
    client::{Client, Credential, CurrentUser, explicit_url, stored_logins::StoredLogin},
    exit::{Exit, Failure},
    output::{Output, one_line, print_note},
};
use countersign_auth::tokens::{
    code_flow::AuthorizationResponseError,
    public_client::{ClientSettings, GrantError, PublicClient},
};
use countersign_rest::identity_provider::SignInOptions;

pub fn run(args: &LoginArgs, out: &mut Output) -> Result<Exit, Failure> {
    actix_web::rt::System::new().block_on(sign_in(args, out))
}

async fn sign_in(args: &LoginArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut gateway = Client::without_credential(&args.connect)?;
    let url = explicit_url(&args.connect)?;
    let name = one_line(&gateway.name).into_owned();
    let settings = read_settings(gateway.get(&["sign-in"], &[]).await?.read()?, &name)?;
    if let Some(url) = &url {
        check_resource(url, &settings)?;
    }
    print_note(&describe_request(&name, &settings, url.is_some()));
    let client = PublicClient::discover(settings.clone(), gateway.authorities.clone()).await.map_err(failure)?;
    let uses_device = args.device || (!browser::is_available() && client.has_device_grant());
    let tokens = match uses_device {
        true => device::sign_in(&client).await.map_err(failure)?,
        false => loopback::sign_in(&client).await?,
    };
    let login = StoredLogin::new(settings, tokens, Timestamp::now());
    let logins = gateway.logins()?;
    gateway.credential = Credential::Bearer(login.access_token.clone());
    let answer = match gateway.get(&["me"], &[]).await {
        Ok(answer) => answer,
        Err(Failure { exit, message, .. }) => {
            // The gateway refuses the token, so it is revoked and not stored.
            let _ = client.revoke(login.refresh_token.as_ref().unwrap_or(&login.access_token)).await;
            return Err(Failure::new(exit, format!("{name} does not accept this sign-in: {message}")));
        }
    };
    logins.insert(&gateway.name, login).await?;
    gateway.print(&answer, out, |user: CurrentUser, out| {
        Ok(out.write_line(&format!("Signed in to {name} as {} ({})", user.shown_name(), user.role))?)
    })
}

/// Returns the settings of the client, or what to do without an identity provider.
fn read_settings(options: SignInOptions, gateway: &str) -> Result<ClientSettings, Failure> {
    let message = match options {
        SignInOptions { cli: Some(settings), .. } => return Ok(settings),
        SignInOptions { provider: true, .. } => format!(
            "people sign in to the dashboard of {gateway} with an identity provider, but not on the command line: its operator \
             must name a public client (auth.oidc.cli_client_id) and accept the provider's tokens (auth.tokens), as \
             docs/identity.md says. Until then, use a key (COUNTERSIGN_KEY)"
        ),
        SignInOptions { provider: false, .. } => format!(
            "{gateway} has no identity provider (auth.oidc). Sign in to the dashboard with `countersign open`, or create a key on \
             the gateway's machine with `export COUNTERSIGN_KEY=$(countersign keys create --role reviewer --name NAME)`"
        ),
    };
    Err(Failure::new(Exit::NotAuthorized, message))
}

/// Describes what the person is about to grant: the gateway chooses the provider, the client and the scopes. Tokens without a
/// resource may be accepted elsewhere too, so the person is warned unless the gateway is that of this machine.
fn describe_request(gateway: &str, settings: &ClientSettings, is_explicit: bool) -> String {
    let ClientSettings { issuer, client_id, scopes, resource } = settings;
    let scopes = if scopes.is_empty() { "no scopes".to_owned() } else { scopes.join(" ") };
    let mut text = format!(
        "Signing in to {gateway} with {}, client {}, {}",
        one_line(issuer),
        one_line(client_id),
        one_line(&scopes)
    );
    if is_explicit && resource.is_none() {
        text.push_str(
            ". The gateway does not say that the tokens are for itself, so it could use them elsewhere. Go on only if you trust it",
        );
    }
    text
}

/// Checks that the tokens are for the gateway at this address. Otherwise it could get tokens for another one.
fn check_resource(url: &Url, settings: &ClientSettings) -> Result<(), Failure> {
    let Some(resource) = &settings.resource else { return Ok(()) };
    if Url::parse(resource).is_ok_and(|resource| resource.origin() == url.origin()) {
        return Ok(());
    }
    let message = format!(
        "the gateway at {} asks for tokens for {}. Write its public address (--url URL), so that the tokens go there only",
        one_line(url.as_str()),
        one_line(resource)
    );
    Err(Failure::new(Exit::Failed, message))
}

/// Describes for the person why there are no tokens.
fn failure(error: GrantError) -> Failure {
    let (exit, message) = match &error {
        GrantError::Unreachable(_) => (Exit::Unavailable, error.to_string()),
        GrantError::Refused(code) | GrantError::Response(AuthorizationResponseError::Refused(code)) => {
            match code.as_str() {
                "access_denied" => (Exit::NotAuthorized, "the sign-in was denied at the identity provider".to_owned()),
                "expired_token" => (Exit::NotAuthorized, "nobody signed in within the time limit".to_owned()),
                _ => (Exit::NotAuthorized, format!("the identity provider refuses with {code:?}")),
            }
        }
        GrantError::Unusable(_) | GrantError::Response(_) => (Exit::Failed, error.to_string()),
    };
    Failure::new(exit, one_line(&message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(resource: Option<&str>) -> ClientSettings {
        ClientSettings {
            issuer: "https://id.example".to_owned(),
            client_id: "cli".to_owned(),
            scopes: Vec::new(),
            resource: resource.map(str::to_owned),
        }
    }

    #[test]
    fn tokens_are_for_the_gateway_that_asks_for_them() {
        let url = Url::parse("https://gw.example/").unwrap();
        for (resource, is_accepted) in [
            (Some("https://gw.example/mcp"), true),
            (Some("https://gw.example:443/mcp"), true),
            (None, true),
            (Some("https://other.example/mcp"), false),
            (Some("http://gw.example/mcp"), false),
            (Some("api://gw"), false),
        ] {
            assert_eq!(check_resource(&url, &settings(resource)).is_ok(), is_accepted, "{resource:?}");
        }
    }

    #[test]
    fn client_and_scopes_are_shown_before_the_sign_in() {
        let with_scopes =
            |resource| ClientSettings { scopes: vec!["a".to_owned(), "b\nc".to_owned()], ..settings(resource) };
        let shown = describe_request("gw", &with_scopes(Some("https://gw/mcp")), true);
        assert!(shown.starts_with("Signing in to gw with https://id.example, client cli, a b"), "{shown}");
        assert!(!shown.contains('\n') && !shown.contains("trust"), "{shown}");
        assert!(describe_request("gw", &with_scopes(None), true).contains("trust"));
        assert!(!describe_request("gw", &with_scopes(None), false).contains("trust"));
    }

    #[test]
    fn gateway_without_a_provider_is_explained() {
        let explain = |provider| {
            read_settings(SignInOptions { provider, sign_in_url: None, cli: None }, "http://gw").unwrap_err().message
        };
        assert!(explain(false).contains("countersign open"));
        assert!(explain(true).contains("auth.oidc.cli_client_id"));
        let settings = settings(None);
        let options = SignInOptions { provider: true, sign_in_url: None, cli: Some(settings.clone()) };
        assert_eq!(read_settings(options, "http://gw").unwrap(), settings);
    }
}
