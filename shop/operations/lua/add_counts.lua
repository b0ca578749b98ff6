-- Adds counts to a hash that expires.
--
-- KEYS  1 the hash
-- ARGV  1 seconds to live; then for each count: field, number

for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
