//! Signs in with a browser on another device (RFC 8628).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::output::{one_line, print_note};
use countersign_auth::tokens::public_client::{GrantError, PublicClient, TokenResponse};

/// The time by which `slow_down` lengthens the interval (RFC 8628, section 3.5).
const SLOW_DOWN: Duration = Duration::from_secs(5);

/// Shows the person a code, and polls the provider until they have entered it or the code has expired.
pub async fn sign_in(client: &PublicClient) -> Result<TokenResponse, GrantError> {
    let device = client.authorize_device().await?;
    let (page, code) = (one_line(&device.verification_uri), one_line(&device.user_code));
    print_note(&format!("Open {page} on any device and enter the code {code}"));
    if let Some(page) = &device.verification_uri_complete {
        print_note(&format!("or open {}", one_line(page)));
    }
    let end = Instant::now() + device.lifetime();
    let mut interval = device.interval();
    while Instant::now() + interval < end {
        sleep(interval).await;
        match client.redeem_device_code(&device).await {
            Ok(tokens) => return Ok(tokens),
            Err(error) => interval = next_interval(interval, error)?,
        }
    }
    Err(GrantError::Refused("expired_token".to_owned()))
}

/// Returns the next polling interval (RFC 8628, section 3.5), or the error if polling again does not help.
fn next_interval(interval: Duration, error: GrantError) -> Result<Duration, GrantError> {
    match error {
        GrantError::Refused(code) if code == "authorization_pending" => Ok(interval),
        GrantError::Refused(code) if code == "slow_down" => Ok(interval + SLOW_DOWN),
        GrantError::Unreachable(_) => Ok(interval * 2),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_grows_as_the_provider_asks() {
        let five = Duration::from_secs(5);
        let after = |error| next_interval(five, error).map(|interval| interval.as_secs()).map_err(drop);
        let refused = |code: &str| after(GrantError::Refused(code.to_owned()));
        assert_eq!(refused("authorization_pending"), Ok(5));
        assert_eq!(refused("slow_down"), Ok(10));
        assert_eq!(after(GrantError::Unreachable("timeout".to_owned())), Ok(10));
        for code in ["access_denied", "expired_token", "invalid_client"] {
            assert_eq!(refused(code), Err(()), "{code}");
        }
    }
}
