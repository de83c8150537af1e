//! `logout`: revokes and removes the tokens that `login` stored.

use serde_json::json;

use super::{
    args::ConnectArgs,
    client::Client,
    exit::{Exit, Failure},
    output::{Output, one_line, print_note},
};
use countersign_auth::tokens::public_client::PublicClient;

pub fn run(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    actix_web::rt::System::new().block_on(sign_out(args, out))
}

async fn sign_out(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let gateway = Client::without_credential(args)?;
    let login = gateway.logins()?.remove(&gateway.name).await?;
    let is_signed_out = login.is_some();
    let mut is_revoked = false;
    if let Some(login) = login {
        let token = login.refresh_token.unwrap_or(login.access_token);
        let authorities = gateway.authorities;
        let revoked = async { PublicClient::discover(login.client, authorities).await?.revoke(&token).await };
        match revoked.await {
            Ok(revoked) => is_revoked = revoked,
            Err(error) => print_note(&one_line(&format!(
                "The tokens were removed here, but may be valid until the identity provider ends them: {error}"
            ))),
        }
    }
    if args.json {
        let answer = json!({ "gateway": gateway.name, "signedOut": is_signed_out, "revoked": is_revoked });
        out.write_json(&answer.to_string())?;
    } else {
        let outcome = if is_signed_out { "Signed out of" } else { "Nobody was signed in to" };
        out.write_line(&format!("{outcome} {}", gateway.name))?;
    }
    Ok(Exit::Ok)
}
