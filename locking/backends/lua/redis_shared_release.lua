-- Ends the caller's grant, and grants to the waiters that it kept out; for a waiter, leaves the
-- queue.
--
-- KEYS  see redis_shared.lua
-- ARGV  1 owner, 2 floor, 3 entry as in redis_release.lua
-- Returns what redis_release.lua returns

local entry = ARGV[3]
local was_held = tonumber(redis.call('ZSCORE', holders, caller) or 0) > now_ms()
if was_held and redis.call('ZCARD', holders) == 1 and redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', lock, holders)
  return 1
end
if entry ~= '' then
  redis.call('LREM', queue, 1, entry)
end
drop_expired()
drop(caller)
grant_waiting()
local holder = first_end()
if not holder then
  redis.call('DEL', lock, holders)
end
if was_held or entry == '' or not holder then
  return was_held and 1 or 0
end
return {holder, (grant_of(holder))}
