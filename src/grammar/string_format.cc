// The formats of JSON Schema as expressions.
#include "grammar/string_format.h"

#include <string>

namespace vlcache {

std::string pattern_of_format(std::string_view format) {
  const std::string year = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
  const std::string leap_year = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  const std::string date = "(?:" + year + "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|" +
                           "[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" + leap_year + "-02-29)";
  const std::string clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?";
  const std::string time = clock + "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const std::string host = label + "(?:\\." + label + "){0,5}";
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string group = "[0-9a-fA-F]{1,4}";
  if (format == "date") return "^" + date + "$";
  if (format == "time") return "^" + time + "$";
  if (format == "date-time") return "^" + date + "T" + time + "$";
  if (format == "duration") {
    const std::string clock_part =
        "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)";
    return "^P(?:[0-9]{1,9}W|" + clock_part +
           "|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|" +
           "[0-9]{1,9}D)(?:" + clock_part + ")?)$";
  }
  if (format == "email") return "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31}){0,3}@" + host + "$";
  if (format == "hostname") return "^" + host + "$";
  if (format == "ipv4") return "^" + byte + "(?:\\." + byte + "){3}$";
  if (format == "ipv6") {
    std::string all = group + "(?::" + group + "){7}|::";
    for (int n = 1; n <= 7; ++n) {  // groups before ::
      const std::string after = n == 7 ? "" : group + "(?::" + group + "){0," + std::to_string(6 - n) + "}";
      all += "|" + group + "(?::" + group + "){" + std::to_string(n - 1) + "}::" + (n < 7 ? "(?:" + after + ")?" : "");
    }
    all += "|::" + group + "(?::" + group + "){0,6}";
    return "^(?:" + all + ")$";
  }
  if (format == "uuid") return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  return "";
}

}  // namespace vlcache
