//! Decimal numbers as integers, because this crate computes without floating point.

/// Reads a decimal number that is not negative, such as `12.5` or `1.5e-3`, and returns the number
/// times ten to the power of `digits`, rounded down. `None` if the text is no such number or the
/// result does not fit.
pub(crate) fn scaled(text: &str, digits: i32) -> Option<u64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0_u128;
    for byte in whole.bytes().chain(fraction.bytes()) {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u128::from(byte - b'0'))?;
    }
    let shift = digits.checked_add(exponent)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_u128.checked_pow(shift.unsigned_abs());
    let value = match power {
        Some(power) if shift >= 0 => value.checked_mul(power)?,
        Some(power) => value / power,
        // All digits of the result are after the point, and it is rounded down.
        None if shift < 0 || value == 0 => 0,
        None => return None,
    };
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn decimal_number_is_scaled_and_rounded_down() {
        for (text, digits, value) in [
            ("12.5", 4, Some(125_000)),
            ("0", 4, Some(0)),
            (".5", 1, Some(5)),
            ("7.", 0, Some(7)),
            ("1.23456789", 4, Some(12_345)),
            ("1.5e-3", 6, Some(1_500)),
            ("2E2", 0, Some(200)),
            ("1e-60", 6, Some(0)),
        ] {
            assert_eq!(scaled(text, digits), value, "{text}");
        }
    }

    #[test]
    fn text_that_is_no_decimal_number_is_refused() {
        for text in ["", ".", "-1", "+1", "NaN", "1,5", "0x3", "1e", "1e99", "1.2.3", " 1"] {
            assert_eq!(scaled(text, 4), None, "{text}");
        }
    }
}
