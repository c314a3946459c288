// The addresses that a name stands for, by a deadline, which getaddrinfo does not know.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace vlcache {

struct NameLookup {
  std::vector<boost::asio::ip::address> addresses;
  std::string problem;  // why there are none
};

// Asks the system. May take as long as it likes.
NameLookup look_up_now(const std::string& host);

// The same within a time; `ask` is left to itself after that. Any thread. No more than kMaxLookups are asked at once.
NameLookup look_up(const std::string& host, std::chrono::milliseconds timeout,
                   const std::function<NameLookup(const std::string&)>& ask = look_up_now);

inline constexpr int kMaxLookups = 32;

}  // namespace vlcache
