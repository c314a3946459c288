// Counts allocations in tests: replaces malloc and mmap, which operator new and Buffer end in. Include it in one file
// of a test program. Empty in sanitizer builds, whose own malloc must stay.
#pragma once

#ifndef VLCACHE_REF_ONLY

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace {
std::atomic<int> g_allocations{0};
}

extern "C" {
void* __libc_malloc(size_t bytes);
void* malloc(size_t bytes) noexcept {
  ++g_allocations;
  return __libc_malloc(bytes);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  ++g_allocations;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
}

#endif
