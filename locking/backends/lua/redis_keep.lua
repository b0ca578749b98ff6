-- Extends the grant, or records the depth of re-entry.
--
-- KEYS  1 lock
-- ARGV  1 owner
--       2 field  'ttl' (ms from now) or 'count'
--       3 value
-- Returns 1 when the owner has the lock, else 0

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
  return 0
end
if ARGV[2] == 'ttl' then
  -- First, so that a full Redis does not refuse the rest.
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 1
