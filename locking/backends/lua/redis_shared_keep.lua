-- Extends the caller's grant, or records the depth of re-entry; see redis_keep.lua.
--
-- KEYS  see redis_shared.lua
-- ARGV  1 owner, 2 field 'ttl' (ms from now) or 'count', 3 value
-- Returns 1 when the owner has a grant, else 0

drop_expired()
local token, ttl, count = grant_of(caller)
if not token then
  return 0
end
if ARGV[2] == 'ttl' then
  -- First, so that a full Redis does not refuse the rest.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), LINGER))
  keep(caller, token, ARGV[3], count)
else
  redis.call('HSET', lock, caller, token .. ' ' .. ttl .. ' ' .. ARGV[3])
end
return 1
